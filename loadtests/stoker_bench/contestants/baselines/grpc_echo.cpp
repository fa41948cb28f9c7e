// A bare gRPC server in C++ that gives each message back: what gRPC costs without Python.
//
//     grpc_echo HOST:PORT
//
// The generic service takes any method and leaves the message in its bytes, so nothing is parsed. One thread waits at
// one completion queue: on few cores that is faster than the callback interface and its threads, above all for a lone
// caller. stoker_bench/benches/grpc_bench.py compiles it.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>

namespace {

// So many calls can be taken at once before the queue is looked at again.
constexpr int kAwaitedCalls = 64;

// One call: awaited, its message read, the same written back with the status; each step comes back by the queue.
class Call {
 public:
  Call(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }

  // Take the next step, if the last one was `ok`.
  void Proceed(bool ok) {
    switch (awaited_) {
      case Step::kCall:
        if (!ok) {  // The server ends.
          delete this;
          return;
        }
        new Call(service_, queue_);
        awaited_ = Step::kMessage;
        stream_.Read(&message_, this);
        return;
      case Step::kMessage:
        awaited_ = Step::kEnd;
        if (ok) {
          stream_.WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK, this);
        } else {
          stream_.Finish(grpc::Status(grpc::StatusCode::INTERNAL, "there was no message"), this);
        }
        return;
      case Step::kEnd:
        delete this;
        return;
    }
  }

 private:
  enum class Step { kCall, kMessage, kEnd };

  grpc::AsyncGenericService* service_;
  grpc::ServerCompletionQueue* queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer message_;
  Step awaited_ = Step::kCall;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s HOST:PORT\n", arguments[0]);
    return 2;
  }
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(arguments[1], grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (!server) {
    return 1;
  }
  for (int number = 0; number < kAwaitedCalls; ++number) {
    new Call(&service, queue.get());
  }
  void* call;
  bool ok;
  while (queue->Next(&call, &ok)) {
    static_cast<Call*>(call)->Proceed(ok);
  }
}
