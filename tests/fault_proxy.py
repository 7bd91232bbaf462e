"""A TCP proxy that does to connections what networks do: cuts, stalls, slows, flips bytes, and sends everything twice."""
import contextlib
import dataclasses
import socket
import threading
import time

PIECE_BYTES = 64 << 10


@dataclasses.dataclass
class Fault:
    """What becomes of one connection. Offsets count the bytes from the client (`upstream`) or those from the server."""
    cut_at: int | None = None  # both ends are reset once so many bytes have passed
    stall_at: int | None = None  # nothing passes any more, and nothing is closed
    flip_at: int | None = None  # one bit of this byte is turned over
    bytes_per_s: int | None = None
    twice: bool = False  # the server gets the connection's bytes on a second connection too, whose answers are dropped
    upstream: bool = True


class FaultProxy:
    """Stands before 127.0.0.1:`port`. The i-th connection gets `faults[i]`, those after the last none; a function of i is fine too."""

    def __init__(self, port, faults=()):
        self.target, self._faults = port, faults
        self.connections = 0
        self.done = threading.Event()  # some fault has struck
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _fault(self, index):
        if callable(self._faults):
            return self._faults(index) or Fault()
        return self._faults[index] if index < len(self._faults) else Fault()

    def _connect(self):
        server = socket.create_connection(("127.0.0.1", self.target))
        with self._lock:
            self._sockets.append(server)
        return server

    def _accept(self):
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            fault = self._fault(self.connections)
            self.connections += 1
            with self._lock:
                self._sockets.append(client)
            try:
                servers = [self._connect() for _ in range(2 if fault.twice else 1)]
            except OSError:
                client.close()
                continue
            self._start(client, servers, fault)

    def _start(self, client, servers, fault):
        ends = [client, *servers]
        plain = Fault()
        self._spawn(client, servers, fault if fault.upstream else plain, ends)
        self._spawn(servers[0], [client], plain if fault.upstream else fault, ends)
        for extra in servers[1:]:
            self._spawn(extra, [], plain, [])

    def _spawn(self, *arguments):
        threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source, sinks, fault, ends):
        passed = 0
        try:
            while data := source.recv(PIECE_BYTES):
                for piece in self._pieces(data, passed, fault):
                    for sink in sinks:
                        sink.sendall(piece)
                passed += len(data)
                if fault.bytes_per_s:
                    time.sleep(len(data) / fault.bytes_per_s)
        except OSError:
            pass
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pieces(self, data, passed, fault):
        """What of `data` goes on. Raises ConnectionError where the connection is to be cut."""
        if fault.flip_at is not None and passed <= fault.flip_at < passed + len(data):
            changed = bytearray(data)
            changed[fault.flip_at - passed] ^= 0x10
            data = bytes(changed)
            self.done.set()
        for at, strike in (fault.cut_at, self._cut), (fault.stall_at, self._stall):
            if at is not None and at < passed + len(data):
                yield data[:max(0, at - passed)]
                strike()
        yield data

    def _cut(self):
        self.done.set()
        raise ConnectionError

    def _stall(self):
        self.done.set()
        self._closed.wait()
        raise ConnectionError

    def close(self):
        self._closed.set()
        with self._lock:
            for each in [self._listener, *self._sockets]:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
