"""The Open Inference Protocol v2 over gRPC. Imported only by frontends that serve it: gRPC costs memory."""
