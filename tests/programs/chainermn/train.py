"""A small training with ChainerMN, as its users write them.

It trains a classifier on made-up digits with the `naive` communicator, on as many ranks as there are. The worker
processes of a `MultiprocessIterator` load the examples. With `--fail-on RANK`, an extension of that rank raises after
the first epoch. With `--failing-worker`, each rank has one worker process more, which raises at once.
"""

import argparse
import multiprocessing
import os
import sys
import time
import warnings

# chainer 7.8.1 is older than Python 3.11 and numpy 1.23, and says so at length.
warnings.simplefilter("ignore")

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy
from chainer import training
from chainer.training import extensions

EPOCHS = 3
BATCH = 20
PIXELS = 28 * 28
LABELS = 10
WORKERS = 2


class Digits(chainer.dataset.DatasetMixin):
    """Each label has a picture of its own, to which each example adds noise."""

    def __init__(self, size, seed):
        self.size = size
        self.seed = seed

    def __len__(self):
        return self.size

    def get_example(self, i):
        label = i % LABELS
        picture = numpy.random.RandomState(label).rand(PIXELS)
        noise = numpy.random.RandomState(self.seed + i).rand(PIXELS)
        return (picture + noise / 2).astype(numpy.float32), numpy.int32(label)


class Network(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(PIXELS, 32)
            self.labels = L.Linear(32, LABELS)

    def forward(self, pictures):
        return self.labels(F.relu(self.hidden(pictures)))


class DigitEvaluator(extensions.Evaluator):
    """An evaluator of the user's own, which the multi-node evaluator wraps."""

    def evaluate(self):
        result = super().evaluate()
        result["validation/main/error"] = 1 - result["validation/main/accuracy"]
        return result


class Progress(training.Extension):
    """Tells each rank's progress at the end of each epoch, after the evaluation."""

    trigger = (1, "epoch")
    priority = training.PRIORITY_READER

    def __init__(self, comm):
        self.comm = comm

    def __call__(self, trainer):
        workers = self.comm.mpi_comm.allreduce(len(multiprocessing.active_children()))
        if self.comm.rank == 0:
            error = trainer.observation["validation/main/error"]
            print("epoch %d: error %.3f, %d workers" % (trainer.updater.epoch, error, workers), flush=True)


class Accident(training.Extension):
    """Raises after the first epoch, when the other ranks are already in the evaluation."""

    trigger = (1, "epoch")
    priority = training.PRIORITY_WRITER + 1

    def __call__(self, trainer):
        # On the clock of the machine, so that the test knows how long the job lived on.
        print("raised at %d ns" % time.monotonic_ns(), flush=True)
        raise ValueError("failure after epoch %d" % trainer.updater.epoch)


def fail():
    raise RuntimeError("a worker's own failure")


def train(arguments):
    # The server of the forks is started before MPI is, as the documentation of ChainerMN asks for.
    multiprocessing.set_start_method("forkserver")
    process = multiprocessing.Process(target=fail if arguments.failing_worker else None)
    process.start()
    process.join()
    assert process.exitcode == (1 if arguments.failing_worker else 0), process.exitcode

    comm = chainermn.create_communicator("naive")
    places = comm.mpi_comm.allgather((os.environ["RANKRUN_RANK"], comm.rank))
    assert all(int(given) == rank for given, rank in places), places

    train_set = chainermn.scatter_dataset(Digits(600, seed=1000) if comm.rank == 0 else None, comm, shuffle=True, seed=0)
    test_set = chainermn.scatter_dataset(Digits(200, seed=9000) if comm.rank == 0 else None, comm)
    assert comm.mpi_comm.allreduce(len(train_set)) == 600
    train_iterator = chainer.iterators.MultiprocessIterator(train_set, BATCH, n_processes=WORKERS)
    test_iterator = chainer.iterators.MultiprocessIterator(
        test_set, BATCH, repeat=False, shuffle=False, n_processes=WORKERS
    )

    numpy.random.seed(comm.rank)
    model = L.Classifier(Network())
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)
    optimizer.setup(model)
    updater = training.StandardUpdater(train_iterator, optimizer)
    trainer = training.Trainer(updater, (EPOCHS, "epoch"), out=os.environ["RANKRUN_TEST_DIR"])
    trainer.extend(chainermn.create_multi_node_evaluator(DigitEvaluator(test_iterator, model), comm))
    trainer.extend(Progress(comm))
    if comm.rank == arguments.fail_on:
        trainer.extend(Accident())
    trainer.run()
    if comm.rank == 0:
        print("trained on %d ranks" % comm.size)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fail-on", type=int, metavar="RANK")
    parser.add_argument("--failing-worker", action="store_true")
    # The names of this job's semaphores say whose they are, so that one that is left behind is found.
    multiprocessing.current_process()._config["semprefix"] = "/" + os.path.basename(os.environ["RANKRUN_TEST_DIR"])
    train(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
