from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("challenge", "proof", "refusal", "hello", "part", "beat", "revocations")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    proof: Proof
    refusal: Refusal
    hello: Hello
    part: Part
    beat: Beat
    revocations: Revocations
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., revocations: _Optional[_Union[Revocations, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("protocol", "site", "nonce", "revocations")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    site: str
    nonce: bytes
    revocations: int
    def __init__(self, protocol: _Optional[int] = ..., site: _Optional[str] = ..., nonce: _Optional[bytes] = ..., revocations: _Optional[int] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("certificate", "signature", "revocations")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    signature: bytes
    revocations: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., revocations: _Optional[bytes] = ...) -> None: ...

class Revocations(_message.Message):
    __slots__ = ("list",)
    LIST_FIELD_NUMBER: _ClassVar[int]
    list: bytes
    def __init__(self, list: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("incarnation", "boot", "known", "session", "heard", "clock", "run", "known_boot", "parts", "check", "yours", "greeted")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_BOOT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    YOURS_FIELD_NUMBER: _ClassVar[int]
    GREETED_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    boot: int
    known: int
    session: int
    heard: int
    clock: float
    run: bytes
    known_boot: int
    parts: int
    check: int
    yours: Sealed
    greeted: bool
    def __init__(self, incarnation: _Optional[int] = ..., boot: _Optional[int] = ..., known: _Optional[int] = ..., session: _Optional[int] = ..., heard: _Optional[int] = ..., clock: _Optional[float] = ..., run: _Optional[bytes] = ..., known_boot: _Optional[int] = ..., parts: _Optional[int] = ..., check: _Optional[int] = ..., yours: _Optional[_Union[Sealed, _Mapping]] = ..., greeted: _Optional[bool] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("seq", "session", "index", "offset", "total", "parcel", "chunk", "check", "heard")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PARCEL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    seq: int
    session: int
    index: int
    offset: int
    total: int
    parcel: bytes
    chunk: bytes
    check: int
    heard: int
    def __init__(self, seq: _Optional[int] = ..., session: _Optional[int] = ..., index: _Optional[int] = ..., offset: _Optional[int] = ..., total: _Optional[int] = ..., parcel: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., check: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("heard", "parts", "session", "check")
    HEARD_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    heard: int
    parts: int
    session: int
    check: int
    def __init__(self, heard: _Optional[int] = ..., parts: _Optional[int] = ..., session: _Optional[int] = ..., check: _Optional[int] = ...) -> None: ...

class Parcel(_message.Message):
    __slots__ = ("data", "records", "wanted", "outcome")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    data: Data
    records: Records
    wanted: Wanted
    outcome: Outcome
    def __init__(self, data: _Optional[_Union[Data, _Mapping]] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("plan", "epoch", "phase", "iteration", "round", "payload", "riders")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RIDERS_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    epoch: int
    phase: str
    iteration: int
    round: int
    payload: Array
    riders: _containers.RepeatedCompositeFieldContainer[Array]
    def __init__(self, plan: _Optional[bytes] = ..., epoch: _Optional[int] = ..., phase: _Optional[str] = ..., iteration: _Optional[int] = ..., round: _Optional[int] = ..., payload: _Optional[_Union[Array, _Mapping]] = ..., riders: _Optional[_Iterable[_Union[Array, _Mapping]]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("sealed",)
    SEALED_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedCompositeFieldContainer[Sealed]
    def __init__(self, sealed: _Optional[_Iterable[_Union[Sealed, _Mapping]]] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("record", "certificate", "signature")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, record: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("site", "incarnation", "boot", "version", "phase", "links", "fingerprint", "epoch", "plan", "kept", "reached", "computed", "endorsement", "failure", "proposed", "mask_key", "commitment")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    SITE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    ENDORSEMENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    site: int
    incarnation: int
    boot: int
    version: int
    phase: str
    links: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: _containers.ScalarMap[str, bytes]
    epoch: int
    plan: bytes
    kept: _containers.RepeatedCompositeFieldContainer[Kept]
    reached: int
    computed: bytes
    endorsement: Endorsement
    failure: Failure
    proposed: Endorsement
    mask_key: bytes
    commitment: bytes
    def __init__(self, site: _Optional[int] = ..., incarnation: _Optional[int] = ..., boot: _Optional[int] = ..., version: _Optional[int] = ..., phase: _Optional[str] = ..., links: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[_Mapping[str, bytes]] = ..., epoch: _Optional[int] = ..., plan: _Optional[bytes] = ..., kept: _Optional[_Iterable[_Union[Kept, _Mapping]]] = ..., reached: _Optional[int] = ..., computed: _Optional[bytes] = ..., endorsement: _Optional[_Union[Endorsement, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., proposed: _Optional[_Union[Endorsement, _Mapping]] = ..., mask_key: _Optional[bytes] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("epoch", "plan", "members", "outcome")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    plan: bytes
    members: _containers.RepeatedScalarFieldContainer[int]
    outcome: bytes
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[bytes] = ..., members: _Optional[_Iterable[int]] = ..., outcome: _Optional[bytes] = ...) -> None: ...

class Endorsement(_message.Message):
    __slots__ = ("site", "claim", "certificate", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: int
    claim: Claim
    certificate: bytes
    signature: bytes
    def __init__(self, site: _Optional[int] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "why", "accused", "what", "phase", "iteration")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ACCUSED_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    why: str
    accused: int
    what: str
    phase: str
    iteration: int
    def __init__(self, kind: _Optional[str] = ..., why: _Optional[str] = ..., accused: _Optional[int] = ..., what: _Optional[str] = ..., phase: _Optional[str] = ..., iteration: _Optional[int] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("iteration", "key", "members")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    key: bytes
    members: bytes
    def __init__(self, iteration: _Optional[int] = ..., key: _Optional[bytes] = ..., members: _Optional[bytes] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: bytes
    def __init__(self, outcome: _Optional[bytes] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("outcome", "endorsements")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ENDORSEMENTS_FIELD_NUMBER: _ClassVar[int]
    outcome: bytes
    endorsements: _containers.RepeatedCompositeFieldContainer[Endorsement]
    def __init__(self, outcome: _Optional[bytes] = ..., endorsements: _Optional[_Iterable[_Union[Endorsement, _Mapping]]] = ...) -> None: ...
