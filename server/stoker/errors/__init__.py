"""The error tree. Each error has an HTTP status and a stable code that clients may match on.

StokerError                     500 internal
├─ RequestError                 the caller can mend it
│  ├─ MalformedBody             400 malformed_body      not JSON, not UTF-8, NaN, an incomplete body
│  ├─ InvalidInput              422 invalid_input       JSON of the wrong shape or type
│  ├─ SequenceRequired          400 sequence_required   the model keeps state: no sequence was named
│  ├─ UnknownSequence           400 unknown_sequence    none was started, or it has ended
│  ├─ Unauthorized              401 unauthorized
│  ├─ Forbidden                 403 forbidden           no key would help: this server does not do that
│  │  ├─ OutOfScope             403 out_of_scope        the key is not for this model
│  │  └─ HostNotAllowed         403 host_not_allowed    without keys: the Host is none of allowed_hosts
│  ├─ NotFound                  404 not_found           no such path
│  ├─ UnknownService            404 unknown_service
│  ├─ MethodNotAllowed          405 method_not_allowed
│  ├─ RegionTaken               409 region_taken        shared memory: a name twice, or too many
│  ├─ RequestTimeout            408 request_timeout     the request did not arrive in time
│  ├─ BodyTooLarge              413 body_too_large
│  ├─ ImageTooLarge             413 image_too_large     too many pixels to decode
│  ├─ RequestOverQuota          413 request_over_quota  more rows than the caller may ever send at once
│  ├─ TargetTooLong             414 target_too_long     path and query
│  ├─ UnsupportedEncoding       415 unsupported_encoding
│  ├─ ExpectationFailed         417 expectation_failed  an Expect other than 100-continue
│  ├─ QuotaExceeded             429 quota_exceeded      the caller's own limit; Retry-After
│  └─ HeaderTooLarge            431 header_too_large
├─ ServingError                 the server cannot answer this request
│  ├─ NotSupported              501 not_supported       a part of a protocol that is not spoken here
│  ├─ Overloaded                503 overloaded          no row, or no memory; Retry-After
│  ├─ TooManySequences          503 too_many_sequences  as many are kept as may be; Retry-After
│  ├─ NotReady                  503 not_ready           loading, restarting or draining
│  ├─ DeviceLost                503 device_lost         the device process died with the request
│  ├─ DeviceOutOfMemory         503 device_out_of_memory  the device had no memory for the rows
│  ├─ DeadlineExceeded          504 deadline_exceeded
│  ├─ ModelFailed               500 model_failed        run() raised or the runtime refused the row
│  ├─ ScoringTimeout            500 scoring_timeout     run() had begun and did not return in time
│  ├─ OutputTooLarge            500 output_too_large    the answer does not fit its row
│  └─ NonFiniteOutput           500 non_finite_output   NaN or infinity, where non_finite is error
└─ OperatorError                the operator can mend it: settings, files, devices; exit code 2
   ├─ InvalidSettings
   ├─ RepositoryError
   │  ├─ UnknownModel
   │  ├─ ModelInUse
   │  └─ CorruptModel
   ├─ DeviceUnavailable
   ├─ EnvironmentUnusable          a file of a model's packages cannot be read or installed
   ├─ BatchFailed               exit code 1: rows that are scored without a server have no answer
   ├─ ReloadFailed              the new server did not start, and the old one goes on
   ├─ ClusterError              a cluster cannot be asked, or has not become what was wanted
   │  └─ ClusterRefusal
   │     └─ FieldConflict       others have changed fields that belong to what is applied
   ├─ UnknownRun
   ├─ SubmissionRefused         a training run cannot be begun, continued or ended as it was asked
   ├─ RunFailed                 exit code 1: a training run that was waited for has failed
   └─ LoadFailed                exit code 3, as the Azure inference server has it
      ├─ LoadTimeout            it took longer than load_timeout_s
      └─ ParityFailed           it was not shown to answer as the version that it would take over from
"""

from stoker.errors.base import StokerError
from stoker.errors.operator import (
    BatchFailed,
    ClusterError,
    ClusterRefusal,
    CorruptModel,
    DeviceUnavailable,
    EnvironmentUnusable,
    FieldConflict,
    InvalidSettings,
    LoadFailed,
    LoadTimeout,
    ModelInUse,
    OperatorError,
    ParityFailed,
    ReloadFailed,
    RepositoryError,
    RunFailed,
    SubmissionRefused,
    UnknownModel,
    UnknownRun,
)
from stoker.errors.request import (
    BodyTooLarge,
    ExpectationFailed,
    Forbidden,
    HeaderTooLarge,
    HostNotAllowed,
    ImageTooLarge,
    InvalidInput,
    MalformedBody,
    MethodNotAllowed,
    NotFound,
    OutOfScope,
    QuotaExceeded,
    RegionTaken,
    RequestError,
    RequestOverQuota,
    RequestTimeout,
    SequenceRequired,
    TargetTooLong,
    Unauthorized,
    UnknownSequence,
    UnknownService,
    UnsupportedEncoding,
)
from stoker.errors.serving import (
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    ModelFailed,
    NonFiniteOutput,
    NotReady,
    NotSupported,
    OutputTooLarge,
    Overloaded,
    ScoringTimeout,
    ServingError,
    TooManySequences,
)

__all__ = [
    "BatchFailed",
    "BodyTooLarge",
    "ClusterError",
    "ClusterRefusal",
    "CorruptModel",
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceOutOfMemory",
    "DeviceUnavailable",
    "EnvironmentUnusable",
    "ExpectationFailed",
    "FieldConflict",
    "Forbidden",
    "HeaderTooLarge",
    "HostNotAllowed",
    "ImageTooLarge",
    "InvalidInput",
    "InvalidSettings",
    "LoadFailed",
    "LoadTimeout",
    "MalformedBody",
    "MethodNotAllowed",
    "ModelFailed",
    "ModelInUse",
    "NonFiniteOutput",
    "NotFound",
    "NotReady",
    "NotSupported",
    "OperatorError",
    "OutOfScope",
    "OutputTooLarge",
    "Overloaded",
    "ParityFailed",
    "QuotaExceeded",
    "RegionTaken",
    "ReloadFailed",
    "RepositoryError",
    "RequestError",
    "RequestOverQuota",
    "RequestTimeout",
    "RunFailed",
    "ScoringTimeout",
    "SequenceRequired",
    "ServingError",
    "StokerError",
    "SubmissionRefused",
    "TargetTooLong",
    "TooManySequences",
    "Unauthorized",
    "UnknownModel",
    "UnknownRun",
    "UnknownSequence",
    "UnknownService",
    "UnsupportedEncoding",
]
