# Tests ringgrad as a Meson subproject: it adds only the library, and a program of the parent project links it.
#
# Called with the build folder, the path of mpiexec (both unused), and the compiler command of the build.
import json
import os
import pathlib
import shlex
import subprocess
import sys

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESON = shlex.split(os.environ.get("MESONINTROSPECT", "meson introspect"))[:-1]

# The parent has a program, an option and headers whose names are ringgrad's, too.
PROJECT = """project('parent', 'cpp', version: '7', default_options: ['cpp_std=c++20', 'werror=true'])
assert(get_option('tests') == 'mine')
ringgrad = dependency('ringgrad', fallback: ['ringgrad', 'ringgrad_dep'])
test('train_cifar', executable('train_cifar', 'train_cifar.cpp', dependencies: ringgrad))
"""
OWN_HEADERS = {"core/json.h": "inline constexpr int kJson = 40;\n", "data/cache.h": "inline constexpr int kCache = 2;\n"}
OWN_INCLUDES = """#include "core/json.h"
#include "data/cache.h"
#include "ringgrad/core/options.h"
#include "ringgrad/data/cache.h"
static_assert(kJson + kCache == 42 && sizeof(rg::Json) > 0);
"""
OPTIONS = "option('tests', type: 'string', value: 'mine')\n"


class SubprojectTest(job.JobTest):
    def setUp(self):
        super().setUp()
        (self.folder / "subprojects").mkdir()
        (self.folder / "subprojects" / "ringgrad").symlink_to(ROOT)
        (self.folder / "meson.build").write_text(PROJECT)
        (self.folder / "meson_options.txt").write_text(OPTIONS)
        for name, text in OWN_HEADERS.items():
            (self.folder / name).parent.mkdir()
            (self.folder / name).write_text("#pragma once\n" + text)
        example = (ROOT / "models" / "examples" / "mlp.cpp").read_text()
        (self.folder / "train_cifar.cpp").write_text(OWN_INCLUDES + example)
        self.build = self.folder / "build"

    def run_meson(self, *arguments):
        environment = os.environ | {"CXX": shlex.join(sys.argv[3:])}
        result = subprocess.run([*MESON, *arguments], cwd=self.folder, env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=1500)
        self.assertEqual(result.returncode, 0, result.stdout)

    def set_up(self, *options):
        """Configures what compiles fastest: no optimization, no CUDA, and the instruction sets of this machine."""
        self.run_meson("setup", str(self.build), "--buildtype=plain", "--force-fallback-for=ringgrad",
                       "-Dunity=on", "-Dringgrad:cuda=disabled", "-Dringgrad:isa=native", *options)

    def introspect(self, name):
        return json.loads((self.build / "meson-info" / f"intro-{name}.json").read_text())

    def programs(self):
        return sorted(target["name"] for target in self.introspect("targets") if target["type"] == "executable")

    def test_adds_only_the_library(self):
        self.set_up()
        self.assertEqual(self.programs(), ["train_cifar"])
        self.assertEqual([test["name"] for test in self.introspect("tests")], ["train_cifar"])
        self.run_meson("test", "-C", str(self.build))  # builds and runs the program
        self.assertTrue((self.build / "train_cifar").exists())

    def test_adds_programs_on_request(self):
        self.set_up("-Dringgrad:programs=enabled")
        self.assertEqual(self.programs().count("train_cifar"), 2)
        self.assertIn("predict", self.programs())
        self.assertNotIn("rg_tests", self.programs())


job.main()
