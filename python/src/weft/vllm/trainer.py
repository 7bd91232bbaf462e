"""The trainer's side of the back end `weft`, by vLLM's own trainer interface. `weft serve` takes weights from it, too."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from .._errors import InvalidArgumentError
from .._publisher import Publisher
from .._servers import Origin


@dataclasses.dataclass
class WeftTrainerInitInfo(TrainerInitInfo):
    """Where versions go: to a store, or into an origin of this process, from which the workers pull."""

    backend: ClassVar[str] = "weft"

    store: str | None = None
    """URL of a `weft store`. None: an origin of this process."""
    host: str = "127.0.0.1"
    """Where the origin listens; beyond this machine it takes an admin key."""
    port: int = 0
    url: str | None = None
    """How the workers reach it, where that is another address than it listens on."""
    admin_key: str | None = None
    """Of the store, or of the origin."""
    read_key: str | None = None
    """That workers use; it is told to them."""
    ca_file: str | None = None
    """PEM, for https."""


class WeftTrainerWeightTransferEngine(TrainerWeightTransferEngine[WeftTrainerInitInfo]):
    """`send_weights(label)` makes the source a version, and has vLLM load it. On ranks other than 0 it takes part in
    gathering alone."""

    init_info_cls = WeftTrainerInitInfo

    def __init__(self, init_info: WeftTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._origin: Origin | None = None
        server: Any = init_info.store
        if server is None and self.is_sender:
            server = self._origin = Origin(host=init_info.host, port=init_info.port, admin_key=init_info.admin_key,
                                           read_key=init_info.read_key)
        self._url = init_info.url or init_info.store or (self._origin.url if self._origin else "")
        self._publisher = Publisher(server or "http://127.0.0.1", key=init_info.admin_key, ca_file=init_info.ca_file,
                                    delta=True, is_sender=self.is_sender)

    @classmethod
    def trainer_init(cls, init_info: WeftTrainerInitInfo, *, client: VLLMWeightSyncClient,
                     source: WeightSource | None = None) -> Self:
        if source is None:
            raise InvalidArgumentError("weft needs a WeightSource: vLLM's ModuleSource(model) is one")
        engine = cls(init_info, client, source)
        if engine.is_sender:
            given = {"key": init_info.read_key, "ca_file": init_info.ca_file}
            client.init_weight_transfer_engine({name: value for name, value in given.items() if value is not None})
        return engine

    def send_weights(self, label: str | None = None) -> None:
        """Raises what went wrong; vLLM then goes on with the weights that it has."""
        options = {} if self._origin else {"head": "main"}
        published = self._publisher.publish(self.source, label=label, **options)
        if not self.is_sender:
            return
        version = published.result().id
        self.client.start_weight_update()
        self.client.update_weights({"version": version, "source": self._url})
        self.client.finish_weight_update(label)

    def shutdown(self) -> None:
        self._publisher.close()
        if self._origin is not None:
            self._origin.close()
