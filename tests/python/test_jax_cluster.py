"""How JAX learns of its job, in every interpreter of this machine: by the hook, and by `import rankrun` where there is none.

The JAX here is a stand-in with the modules that matter. The real one is in tests/tests/jax.rs.
"""

import json
import os
import re
import shutil
import unittest

from agent import HOOK, PACKAGE
from test_hook import HookTest, in_each_python

CLUSTER = """
class ClusterEnv:
    _cluster_types = []
    name = ""
    opt_in_only_method = False
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls._cluster_types.append(cls)
    @classmethod
    def is_env_present(cls): raise NotImplementedError
"""
KNOWN = """
from .cluster import ClusterEnv
class {name}(ClusterEnv):
    @classmethod
    def is_env_present(cls): return True
"""
MODULES = {
    "__init__.py": "",
    "_src/__init__.py": "",
    "_src/clusters/__init__.py": "from .cluster import ClusterEnv\nfrom .slurm_cluster import Slurm\nfrom .k8s_cluster import K8s",
    "_src/clusters/cluster.py": CLUSTER,
    "_src/clusters/slurm_cluster.py": KNOWN.format(name="Slurm"),
    "_src/clusters/k8s_cluster.py": KNOWN.format(name="K8s"),
}
# Prints what JAX would find, with the arguments that its releases pass.
ASK = """
import json
from jax._src.clusters import ClusterEnv
known = ClusterEnv._cluster_types
found = next(kind for kind in known if kind.is_env_present())
print(json.dumps([[kind.__name__ for kind in known], found.__name__]))
if found.__name__ == "RankrunCluster":
    calls = [(), (60,), (60, "1234")], [{}, {"timeout_secs": 60}, {"timeout_secs": 60, "override_coordinator_port": None}]
    print(json.dumps([found.get_coordinator_address(*a) for a in calls[0]] + [found.get_coordinator_address(**k) for k in calls[1]]))
    print(json.dumps([found.name, found.get_process_count(), found.get_process_id(), found.get_local_process_id()]))
"""
ADDRESS = "127.0.0.1:41001"
RANK = {
    "RANKRUN_RANK": "1",
    "RANKRUN_WORLD_SIZE": "4",
    "RANKRUN_JAX_COORDINATOR": ADDRESS,
    "RANKRUN_JAX_LOCAL_DEVICE": "1",
    "RANK": "1",
    "WORLD_SIZE": "4",
}
OURS = [["RankrunCluster", "Slurm", "K8s"], "RankrunCluster"]


class JaxTest(HookTest):
    def setUp(self):
        super().setUp()
        self.site = self.directory / "site"
        for name, text in MODULES.items():
            path = self.site / "jax" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def rank(self, hook=True, package=False, **more):
        """The environment of a rank that finds JAX, and perhaps the package."""
        env = self.agent.environment()
        paths = [env["PYTHONPATH"]] * hook + [str(self.site)] + [str(PACKAGE)] * package
        env.update(RANK, PYTHONPATH=os.pathsep.join(paths), PYTHONDONTWRITEBYTECODE="1")
        env.update(more)
        return {name: value for name, value in env.items() if value is not None}

    def run_rank(self, python, program, **options):
        status, out, err = self.run_to_end([python, self.script(program)], env=self.rank(**options))
        self.assertEqual((status, err), (0, ""))
        return [json.loads(line) for line in out.splitlines()]


class ByTheHook(JaxTest):
    @in_each_python()
    def test_jax_finds_the_job_before_all_else_and_in_all_its_releases(self, python):
        found, addresses, who = self.run_rank(python, ASK)
        self.assertEqual(found, OURS)
        self.assertEqual(addresses, [ADDRESS, ADDRESS, "127.0.0.1:1234", ADDRESS, ADDRESS, ADDRESS])
        self.assertEqual(who, ["rankrun", 4, 1, 1])

    @in_each_python()
    def test_programs_without_jax_see_no_trace(self, python):
        program = (
            "import sys, json\n"
            "caches = sorted(name for name in sys.path_importer_cache if not name.endswith('/jax/_src/clusters'))\n"
            "print(json.dumps([repr(sys.meta_path), repr(sys.path_hooks), sorted(m for m in sys.modules if 'jax' in m), caches]))"
        )

        def look(**options):
            (seen,) = self.run_rank(python, program, **options)
            return re.sub(r"0x[0-9a-f]+", "0x", repr(seen))

        self.assertEqual(look(), look(hook=False))

    @in_each_python()
    def test_nothing_stays_behind_once_jax_is_imported(self, python):
        program = (
            "import json, sys\nfrom jax._src.clusters import ClusterEnv\n"
            "finder = sys.path_importer_cache[sys.argv[0].rsplit('/', 1)[0] + '/site/jax/_src/clusters']\n"
            "print(json.dumps([type(finder).__name__, 'find_spec' in vars(finder), type(sys.meta_path[0]).__name__]))\n"
            "kind = ClusterEnv._cluster_types[0]\n"
            "print(json.dumps(kind.is_env_present.__func__.__code__.co_filename))"
        )
        finder, name = self.run_rank(python, program)
        self.assertEqual((finder[:2], name), (["FileFinder", False], "<rankrun>"))

    @in_each_python()
    def test_jax_without_the_modules_that_are_watched_is_imported_as_ever(self, python):
        (self.site / "jax/_src/clusters/cluster.py").write_text("class Other: pass\n")
        (self.site / "jax/_src/clusters/__init__.py").write_text("from .cluster import Other\nfrom . import more")
        (self.site / "jax/_src/clusters/more.py").write_text("")
        self.assertEqual(self.run_rank(python, "import jax._src.clusters.more; print(1)"), [1])

    @in_each_python()
    def test_a_hook_whose_directory_is_gone_is_no_trouble(self, python):
        program = "import os, shutil, sys\nshutil.rmtree(os.environ['PYTHONPATH'].split(':')[0])\n" + ASK
        self.addCleanup(self.lay_out_again)
        (found,) = self.run_rank(python, program)
        self.lay_out_again()
        self.assertEqual(found, [["Slurm", "K8s"], "Slurm"])

    def lay_out_again(self):
        self.agent.hook.mkdir(exist_ok=True)
        for name in (HOOK.name, "jax_cluster.py"):
            shutil.copy(str(HOOK.with_name(name)), str(self.agent.hook))

    @in_each_python()
    def test_without_a_port_that_is_held_nothing_is_registered(self, python):
        (found,) = self.run_rank(python, ASK, RANKRUN_JAX_COORDINATOR=None)
        self.assertEqual(found, [["Slurm", "K8s"], "Slurm"])

    @in_each_python()
    def test_what_a_launcher_within_the_rank_says_comes_first(self, python):
        for names in (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"},
            {"RANK": "0", "WORLD_SIZE": "8"},
            {"PMI_RANK": "1", "PMI_SIZE": "8"},
        ):
            with self.subTest(names=names):
                (found,) = self.run_rank(python, ASK, **names)
                self.assertEqual(found[1], "Slurm")
        for names in ({"PMI_RANK": "1", "PMI_SIZE": "4"}, {"RANK": None, "WORLD_SIZE": None}):
            self.assertEqual(self.run_rank(python, ASK, **names)[0], OURS)

    @in_each_python()
    def test_the_device_is_the_ranks_own_or_all_that_it_sees(self, python):
        def device(**more):
            return self.run_rank(python, ASK, **more)[2][3]

        self.assertEqual(device(CUDA_VISIBLE_DEVICES="4,5"), 1)
        self.assertIsNone(device(RANKRUN_JAX_LOCAL_DEVICE=None, CUDA_VISIBLE_DEVICES="4,5"))
        self.assertIsNone(device(CUDA_VISIBLE_DEVICES="5"), "a script has chosen it")
        self.assertIsNone(device(ROCR_VISIBLE_DEVICES="5"))


class ByThePackage(JaxTest):
    """The package is for Python 3.9 and later."""

    @in_each_python((3, 9))
    def test_before_and_after_jax_and_beside_the_hook(self, python):
        for program in ("import rankrun, sys\n" + ASK, "import jax._src.clusters, rankrun, sys\n" + ASK):
            for hook in (False, True):
                with self.subTest(program=program[:40], hook=hook):
                    found, addresses, who = self.run_rank(python, program, hook=hook, package=True)
                    self.assertEqual((found, addresses[0], who), (OURS, ADDRESS, ["rankrun", 4, 1, 1]))

    @in_each_python((3, 9))
    def test_nothing_stays_on_the_path_once_jax_is_imported(self, python):
        program = (
            "import json, sys\nbefore = list(sys.meta_path)\nimport rankrun\nwatches = len(sys.meta_path) - len(before)\n"
            "import jax._src.clusters\nprint(json.dumps([watches, sys.meta_path == before]))"
        )
        self.assertEqual(self.run_rank(python, program, hook=False, package=True), [[1, True]])
        self.assertEqual(
            self.run_rank(python, program, hook=False, package=True, RANKRUN_JAX_COORDINATOR=None), [[0, True]]
        )

    def test_the_hook_has_the_same_file(self):
        hook, package = (PACKAGE / "hook/jax_cluster.py", PACKAGE / "rankrun/jax_cluster.py")
        self.assertEqual(hook.read_bytes(), package.read_bytes())


if __name__ == "__main__":
    unittest.main()
