"""Does with TF_CONFIG what TensorFlow does: listens on its own address, and reaches every other worker."""

import json
import os
import socket
import time

config = json.loads(os.environ["TF_CONFIG"])
workers = [worker.rsplit(":", 1) for worker in config["cluster"]["worker"]]
workers = [(host, int(port)) for host, port in workers]
task = config["task"]
index = task["index"]
assert (task["type"], set(config), set(task)) == ("worker", {"cluster", "task"}, {"type", "index"}), config
assert len(set(workers)) == len(workers) == int(os.environ["WORLD_SIZE"]), workers
assert index == int(os.environ["RANK"])

with socket.socket() as stranger:
    try:
        # Without SO_REUSEADDR, as one that asks for a port for itself.
        stranger.bind(workers[index])
        held = False
    except OSError:
        held = True

# With SO_REUSEADDR, as servers do.
server = socket.create_server(workers[index], backlog=len(workers))
deadline = time.monotonic() + 30
peers = []
for worker in workers:
    while True:
        try:
            peers.append(socket.create_connection(worker))
            break
        except ConnectionRefusedError:
            # It is not up yet.
            assert time.monotonic() < deadline, worker
            time.sleep(0.01)
    peers[-1].sendall(b"%d\n" % index)
met = sorted(int(server.accept()[0].makefile().readline()) for _ in workers)
print(f"worker {index}: held {held}, met {met}, ports {[port for _, port in workers]}", flush=True)
