"""The generators of random numbers of a program that was prepared: which of them each rank seeds anew.

It is a part of a fork server (`fork_server.py`), and runs in an interpreter that has come to `site`.
"""

import sys


class Seeds(object):
    """The generators of random numbers that the modules have. Each rank is to have numbers of its own, as when it imports them itself, but where
    a module has seeded a generator, it has done so in all ranks.

    Whether it has done so is seen by the state that a generator had when its module was new. This is a finder of modules, and sees each of
    them before anybody else.
    """

    # A generator that has only been used comes to its state in so many steps, or it counts as seeded.
    STEPS = 2000

    def __init__(self):
        self.new, self.kept = {}, {}
        for name in GENERATORS:
            if name in sys.modules:
                self.note(name)
        sys.meta_path.insert(0, self)

    def note(self, name):
        try:
            self.new[name] = GENERATORS[name](sys.modules[name])
        except Exception:
            # Another module of the same name.
            pass

    def find_spec(self, name, path=None, target=None):
        if name not in GENERATORS:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        else:
            return None
        loader, original = spec.loader, getattr(spec.loader, "exec_module", None)

        def exec_module(module):
            del loader.exec_module
            original(module)
            self.note(name)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader that is a type, or has no room.
            pass
        return spec

    def end(self):
        sys.meta_path.remove(self)
        for name, state in self.new.items():
            now = GENERATORS[name](sys.modules[name])
            if now != state and not is_used(name, state, now, self.STEPS):
                self.kept[name] = now

    def renew(self):
        for name in self.new:
            module = sys.modules[name]
            if name == "random":
                # It has a seed of its own since the fork.
                if name in self.kept:
                    module.setstate(self.kept[name])
            elif name not in self.kept:
                module.seed()


# What is asked for the state of the generator that all use. `torch.random` has no other use for its seed.
GENERATORS = {
    "random": lambda module: module.getstate(),
    "numpy.random": lambda module: freeze(module.get_state()),
    "torch.random": lambda module: module.initial_seed(),
}


def freeze(state):
    return tuple(tuple(part.tolist()) if hasattr(part, "tolist") else part for part in state)


def is_used(name, before, now, steps):
    """Whether numbers were taken from a generator, and no more. torch tells the seed, which stays then."""
    if name == "random":
        generator = sys.modules[name].Random()
        generator.setstate(before)
        state, step = generator.getstate, generator.random
    elif name == "numpy.random":
        generator = sys.modules[name].RandomState()
        generator.set_state(before)
        state, step = (lambda: freeze(generator.get_state())), generator.random_sample
    else:
        return False
    for _ in range(steps):
        step()
        if state() == now:
            return True
    return False
