"""Test that the generated code agrees with wire.proto, which is part of the package."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

import deepca.sites.protocol
from deepca.sites.protocol import wire_pb2

PROTO = Path(deepca.sites.protocol.__file__).with_name("wire.proto")


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    found = tmp_path / "wire.descriptor"
    code = protoc.main(["protoc", f"-I{PROTO.parents[3]}", f"--descriptor_set_out={found}", str(PROTO)])
    assert code == 0
    described = descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes()).file[0]
    for message in described.message_type:
        for each in (message, *message.nested_type):
            for field in each.field:
                field.ClearField("json_name")  # derived from the name; generated code omits it
    generated = descriptor_pb2.FileDescriptorProto()
    wire_pb2.DESCRIPTOR.CopyToProto(generated)
    assert described == generated, "run make proto"


def test_the_protocol_is_part_of_the_package() -> None:
    assert importlib.resources.files("deepca.sites.protocol").joinpath("wire.proto").is_file()
