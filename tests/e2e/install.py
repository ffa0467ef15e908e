# Tests an installation: its files, its programs, and that a program compiles with the flags of pkg-config alone.
#
# Called with the build folder, the path of mpiexec (unused), and the compiler command of the build.
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESON = shlex.split(os.environ.get("MESONINTROSPECT", "meson introspect"))[:-1]
COMPILERS = [sys.argv[3:]] + [[path] for path in [shutil.which("clang++")] if path]
# These are compiled and must run with these arguments. The build compiles the other examples, too, and test_headers()
# checks that the headers which they include are installed.
EXAMPLES = {"mlp": [], "own_network": ["sweep", "--epochs", "1", "--grid", "lr=0.01,0.05"]}
PROGRAMS = ["export_onnx", "inspect", "predict", "train_cifar", "train_digits", "train_digits_angles"]
LIBRARY = ["libringgrad.a", "libringgrad_predict.so", "libringgrad_predict.so.0", "ringgrad.py",
           "pkgconfig/ringgrad.pc", "pkgconfig/ringgrad_predict.pc"]
FOLDERS = ["core", "data", "data/sample", "gpu", "models", "models/run", "models/sweep", "par", "tests", "tools",
           "tools/bench"]  # with a README
DOCUMENTS = ["LICENSE", "API.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md",
             *(f"{folder}/README.md" for folder in FOLDERS), "data/channels.md", "par/channels.md",
             "models/run/clusters.md", "tools/pictures/report.png"]
PAGE = ["base.js", "chart.js", "join.py", "page.html", "page.js", "parts.js", "style.css", "table.js"]

# A program of one's own that chooses a GPU, or the CPU if there is none.
GPU_PROGRAM = """#include "ringgrad/core/context.h"
#include "ringgrad/core/ops.h"
#include "ringgrad/core/tensor.h"
#include "ringgrad/gpu/device.h"
#include <cstdio>
int main() {
    const rg::gpu::FoundGpus found = rg::gpu::find_devices();
    const auto device = found.gpus.empty() ? nullptr : rg::gpu::open_device(found.gpus[0].index);
    const rg::Context context{.device = device.get()};
    const rg::ContextScope scope(context);
    const rg::Tensor sum = rg::add(rg::Tensor::zeros({2}), rg::Tensor::zeros({2})).to_host();
    std::printf("%zu %g %s\\n", found.gpus.size(), double(sum.data<float>()[1]), found.why_none.c_str());
}
"""

# A program that has a file with the same name as one of ringgrad's.
OWN_HEADER = "#pragma once\ninline int own_number() { return 42; }\n"
OWN_PROGRAM = """#include "core/json.h"
#include "ringgrad/core/json.h"
#include "ringgrad/core/version.h"
#include <cstdio>
int main() {
    std::puts(rg::Json::object().set("own", own_number()).set("version", rg::kVersion).dump().c_str());
}
"""


class InstallTest(job.JobTest):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ringgrad-install-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        subprocess.run([*MESON, "install", "-C", job.BUILD, "--no-rebuild", "--destdir", folder], check=True,
                       stdout=subprocess.DEVNULL)
        cls.pc = next(folder.rglob("ringgrad.pc"))
        cls.lib = cls.pc.parents[1]
        cls.prefix = next(folder.rglob("include/ringgrad")).parents[1]
        # A build without -Dpkgconfig.relocatable=true names its final prefix, which is empty.
        for pc in cls.pc.parent.iterdir():
            pc.write_text(re.sub("(?m)^prefix=/.*", f"prefix={cls.prefix}", pc.read_text()))

    def flags(self, *options, name="ringgrad"):
        """Returns flags of an installed library from pkg-config."""
        if not shutil.which("pkg-config"):
            self.skipTest("expected pkg-config, got none (Debian: pkg-config)")
        path = os.pathsep.join([str(self.pc.parent), os.environ.get("PKG_CONFIG_PATH", "")])
        return shlex.split(self.succeed(["pkg-config", *options, name], PKG_CONFIG_PATH=path))

    def compile(self, compiler, source, program):
        """Compiles and links a program without optimization, and returns its path."""
        program = self.folder / program
        self.succeed([*compiler, *self.flags("--cflags"), str(source), "-o", str(program), *self.flags("--libs")])
        return program

    def test_files(self):
        headers = self.prefix / "include"
        files = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*")
                 if path.is_file() and headers not in path.parents}
        lib = self.lib.relative_to(self.prefix)
        sources = ["models/examples/*", "tools/bench/results/*", "models/train_*.cpp", "models/sweep/*.csv"]
        doc = [*DOCUMENTS, *(str(path.relative_to(ROOT)) for pattern in sources for path in ROOT.glob(pattern))]
        tools = [f"tools/{name}" for name in ("get_cifar10.sh", "monitor", "run.sh", "tensorboard.py")]
        expected = [*(f"{lib}/{name}" for name in LIBRARY), *(f"bin/{name}" for name in PROGRAMS),
                    *(f"share/doc/ringgrad/{name}" for name in doc), *(f"share/ringgrad/{name}" for name in tools),
                    *(f"share/ringgrad/models/run/page/{name}" for name in PAGE), "share/ringgrad/models/bindings/ringgrad.py"]
        self.assertEqual(sorted(files), sorted(expected))
        with open(self.lib / "libringgrad.a", "rb") as archive:
            self.assertEqual(archive.read(8), b"!<arch>\n")  # a thin archive refers to the build folder

    def test_links(self):
        documents = list((self.prefix / "share" / "doc" / "ringgrad").rglob("*.md"))
        self.assertGreater(len(documents), 20)
        for document in documents:
            text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                self.assertTrue((document.parent / link).exists(), (document, link))

    def test_headers(self):
        include = self.prefix / "include"
        headers = sorted(str(path.relative_to(include)) for path in include.rglob("*") if path.is_file())
        internal = [name for name in headers if re.search(r"_isa|\.cpp$|\.cuh$|^ringgrad/(gpu/(?!device\.h)|tests/)", name)]
        self.assertEqual(internal, [])
        programs = [*(ROOT / "models").glob("*.cpp"), *(ROOT / "models" / "examples").iterdir()]
        for program in programs:  # a user's program may include what ours do
            for header in re.findall(r'(?m)^#include "(?:ringgrad/)?(\w+/.*)"', program.read_text()):
                self.assertIn(f"ringgrad/{header}", headers, program)
        documents = self.prefix / "share" / "doc" / "ringgrad"
        for path in [*include.rglob("*.h"), *documents.rglob("*.h"), *documents.rglob("*.cpp")]:
            self.assertNotRegex(path.read_text(), r'(?m)^#include "(core|data|gpu|models|par)/', path)
        source = self.folder / "all.cpp"
        source.write_text("".join(f'#include "{name}"\n' for name in headers))
        for compiler in COMPILERS:
            self.succeed([*compiler, *self.flags("--cflags"), "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                          str(source)])

    def test_examples(self):
        for name, arguments in EXAMPLES.items():
            program = self.compile(COMPILERS[0], ROOT / "models" / "examples" / f"{name}.cpp", name)
            self.succeed([str(program), *arguments])

    def test_cmake(self):
        if not shutil.which("cmake"):
            self.skipTest("expected cmake, got none (Debian: cmake)")
        lines = (ROOT / "models/examples/README.md").read_text().partition(" With CMake:\n\n")[2].partition("\n\n")[0]
        (self.folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.13)\nproject(net CXX)\n{lines}\n")
        shutil.copy(ROOT / "models" / "examples" / "mlp.cpp", self.folder / "net.cpp")
        compiler = {"CXX": COMPILERS[0][-1], "CMAKE_CXX_COMPILER_LAUNCHER": ";".join(COMPILERS[0][:-1])}
        self.succeed(["cmake", "-S", str(self.folder), "-B", str(self.folder / "built")],
                     PKG_CONFIG_PATH=str(self.pc.parent), **compiler)
        self.succeed(["cmake", "--build", str(self.folder / "built")])
        self.succeed([str(self.folder / "built" / "net")])

    def test_choice_of_a_gpu(self):
        source = self.folder / "gpu.cpp"
        source.write_text(GPU_PROGRAM)
        out = self.succeed([str(self.compile(COMPILERS[0], source, "gpu"))], CUDA_VISIBLE_DEVICES="")
        self.assertRegex(out, "^0 0 (this build has no CUDA|there is no .*)\n$")

    def test_bindings(self):
        run = self.train(1, "tiny", *job.TINY, "--steps", "1")
        image = self.folder / "image.png"
        image.write_bytes(job.png(job.SIDE, job.SIDE, bytes(3 * job.SIDE * job.SIDE)))
        program, flags = self.folder / "classify", self.flags("--cflags", "--libs", name="ringgrad_predict")
        # The build has a C++ compiler, which can compile C, too.
        self.succeed([*COMPILERS[0], "-x", "c", str(ROOT / "models" / "examples" / "classify.c"), "-x", "none", "-o",
                      str(program), *flags])
        label = self.succeed([str(program), str(run), str(image)], LD_LIBRARY_PATH=str(self.lib)).split("\t")[1]
        script = "import ringgrad, sys; print(ringgrad.Model(sys.argv[1]).predict(sys.argv[2])[0]['class'])"
        self.assertEqual(self.succeed([sys.executable, "-c", script, str(run), str(image)], PYTHONPATH=str(self.lib)),
                         label + "\n")
        script = "import ringgrad; print(ringgrad.train(steps=1, width=4, depth=1).wait(False).state)"
        self.assertEqual(self.succeed([sys.executable, "-c", script], PYTHONPATH=str(self.lib)), "done\n")

    def test_own_headers(self):
        own = self.folder / "core"
        own.mkdir()
        (own / "json.h").write_text(OWN_HEADER)
        source = self.folder / "main.cpp"
        source.write_text(OWN_PROGRAM)
        version = self.flags("--modversion")[0]
        for compiler in COMPILERS:
            self.assertEqual(self.succeed([str(self.compile(compiler, source, "own"))]),
                             f'{{"own": 42, "version": "{version}"}}\n')

    def test_programs(self):
        bin, tools = self.prefix / "bin", self.prefix / "share" / "ringgrad" / "tools"
        for name in PROGRAMS:
            self.assertRegex(self.succeed([str(bin / name), "--version"]), rf"^{name} \d.* instruction sets .*\n$")
            self.assertEqual(self.succeed([str(bin / name), "-h"]), self.succeed([str(bin / name), "--help"]))
        command = [str(bin / "train_cifar"), "--run-name", "one", *job.TINY, "--steps", "2"]
        self.succeed(["sh", str(tools / "run.sh"), "--", *command])
        self.assertIn("one", self.succeed([sys.executable, str(tools / "monitor"), "--text"]))
        monitor = self.start([sys.executable, str(tools / "monitor"), "--port", "0"])
        self.assertRegex(monitor.stdout.readline(), "^http")  # it has read the page
        job.kill_job(monitor)
        monitor.communicate()
        self.succeed([str(bin / "predict"), str(self.runs / "one")])


job.main()
