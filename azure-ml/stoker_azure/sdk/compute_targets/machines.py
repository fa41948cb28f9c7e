"""Machines that SSH reaches: a virtual machine, and the head node of an HDInsight cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Final

from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.base import BaseWorkspace
from stoker_azure.sdk.compute_targets.records import Configuration, without_none
from stoker_azure.sdk.compute_targets.target import ComputeTarget, TargetOfRuns

CHECK_VARIABLE: Final = "STOKER_ATTACH_CHECK"
"""Set to `0`, machines are attached without logging in, as `python -m stoker.azure --no-check` has it."""

_KEYS_OF_SSH: Final = {
    "address": "address",
    "ssh_port": "port",
    "username": "username",
    "private_key_file": "key_file",
}
_SECRETS_OF_SSH: Final = {"password": "password", "private_key_passphrase": "passphrase"}


class _Attached(ComputeTarget):
    """A machine that is reached by SSH."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "it is kept as a record"
    configuration: ClassVar[type[Configuration]] = Configuration
    OLDER = ("username", "address", "ssh_port", "password", "private_key_file", "private_key_passphrase")

    @classmethod
    def attach_configuration(
        cls,
        username: str | None = None,
        resource_id: str | None = None,
        address: str | None = None,
        ssh_port: int = 22,
        password: str | None = "",
        private_key_file: str | None = "",
        private_key_passphrase: str | None = "",
        **on_azure: Any,
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`. Secrets are kept in a file of mode 0600.

        Raises:
            ComputeTargetException: The machine is named only by what it is called on Azure.
        """
        if not address:
            raise ComputeTargetException(
                f"{cls.__name__} is reached by the address of a machine: give address and username in place of "
                f"{', '.join(on_azure) or 'resource_id'}"
            )
        del resource_id
        known = {"address": address, "ssh_port": ssh_port, "username": username}
        values = without_none({**known, "private_key_file": private_key_file or None})
        secrets = {"password": password, "private_key_passphrase": private_key_passphrase}
        return cls.configuration(cls.kind, values, {name: text for name, text in secrets.items() if text})


class _BySsh(Configuration):
    """The arguments for a machine, which becomes a compute target of `stoker targets` too, with the secrets."""

    def save(self, workspace: BaseWorkspace, file: Path) -> None:
        """Attach the machine after logging in to it; if `STOKER_ATTACH_CHECK` is `0`, without logging in.

        Raises:
            OperatorError: The machine cannot be used; nothing is saved.
        """
        from stoker_runs.targets.attaching import attach
        from stoker_runs.targets.registry import engine_of

        kind = "spark" if self.kind == HDInsightCompute.kind else "ssh"
        settings = {"type": kind, **{_KEYS_OF_SSH[name]: value for name, value in self.values.items()}}
        secrets = {_SECRETS_OF_SSH[name]: text for name, text in self.secrets.items()}
        if self.values.get("private_key_file"):
            settings["key_file"] = str(Path(self.values["private_key_file"]).expanduser().absolute())
        check_with = None if os.environ.get(CHECK_VARIABLE) == "0" else engine_of
        attach(workspace.local, file.stem, settings, secrets, check_with)


class RemoteCompute(TargetOfRuns, _Attached):
    """A machine that SSH reaches: scripts are sent there."""

    kind = "VirtualMachine"
    words = "scripts are sent there by SSH"
    configuration = _BySsh


class DsvmCompute(RemoteCompute):
    """A Data Science Virtual Machine."""

    kind = "DataScienceVirtualMachine"


class HDInsightCompute(TargetOfRuns, _Attached):
    """The head node of an HDInsight cluster: spark-submit runs scripts there."""

    kind = "HDInsight"
    words = "scripts are sent there by SSH, and run by spark-submit"
    configuration = _BySsh
