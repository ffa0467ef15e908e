# Tests training on data from an S3-compatible server on this machine and from pipes: the bits are the same as with
# files, a server that fails gives one clear error, and a resume works once the server is back.
#
# This file has a small server with the two requests that a reader makes. It computes the signature of every request and
# rejects a wrong one. foreign_server.py uses the server of another project.
import gzip
import hashlib
import hmac
import http.server
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import unittest
import urllib.parse
import xml.sax.saxutils

import job

OPTIONS = [*job.TINY, "--batch-size", "20", "--steps", "12", "--seed", "5"]
KEY, SECRET, TOKEN, REGION = "AKIDEXAMPLE", "secret/+=key", "session+token==", "eu-west-1"
PAGE = 3  # objects per part of a list


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Server(http.server.ThreadingHTTPServer):
    """Answers ListObjectsV2 and GetObject from the dictionary `objects`, and checks signatures."""
    daemon_threads = True
    request_queue_size = 64  # a client opens many connections at the same time

    def __init__(self, objects, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.objects, self.requests = objects, []
        self.cut, self.busy = False, 0  # send only half of each object; number of requests to answer with 503
        self.busy_get = 0               # the same for requests of objects alone
        self.elsewhere = False          # True: the bucket is in another region
        self.dies_after = 1 << 30       # number of objects
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def signature(self, path, query):
        """Computes AWS Signature Version 4 by its documentation. The query is in canonical order."""
        fields = dict(f.strip().split("=", 1) for f in self.headers["Authorization"].split(" ", 1)[1].split(","))
        names = fields["SignedHeaders"].split(";")
        assert {"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"} <= set(names), names
        assert self.headers["x-amz-security-token"] == TOKEN
        canonical = "\n".join(["GET", path, "&".join(sorted(query.split("&"))) if query else "",
                               *(f"{name}:{self.headers[name].strip()}" for name in names), "", ";".join(names),
                               self.headers["x-amz-content-sha256"]])
        access, *scope = fields["Credential"].split("/")
        assert access == KEY and scope[1:] == [REGION, "s3", "aws4_request"], fields
        to_sign = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], "/".join(scope),
                             hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for part in scope:
            key = digest(key, part)
        return fields["Signature"], digest(key, to_sign).hex()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        try:
            given, right = self.signature(path, query)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            return self.answer(403, f"{error!r}".encode())
        if given != right:
            return self.say(403, "SignatureDoesNotMatch")
        self.server.requests.append(self.path)
        if self.server.busy > 0:
            self.server.busy -= 1
            return self.say(503, "SlowDown")
        if self.server.elsewhere:
            return self.say(301, "PermanentRedirect")
        bucket, _, key = urllib.parse.unquote(path)[1:].partition("/")
        if query:
            return self.list(urllib.parse.parse_qs(query))
        if key not in self.server.objects:
            return self.say(404, "NoSuchKey")
        if self.server.busy_get > 0:
            self.server.busy_get -= 1
            return self.say(503, "SlowDown")
        self.server.dies_after -= 1
        dies = self.server.dies_after == -1
        self.answer(200, self.server.objects[key], cut=self.server.cut or dies)
        if dies:
            self.server.stop()

    def list(self, query):
        prefix, after = query["prefix"][0], query.get("continuation-token", [""])[0]
        assert query["list-type"] == ["2"]
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        more = len(keys) > PAGE
        objects = "".join(f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><ETag>&quot;e&quot;</ETag>"
                          f"<Size>{len(self.server.objects[key])}</Size></Contents>" for key in keys[:PAGE])
        if more:
            objects += f"<NextContinuationToken>{xml.sax.saxutils.escape(keys[PAGE - 1])}</NextContinuationToken>"
        self.answer(200, f'<?xml version="1.0"?><ListBucketResult>{objects}</ListBucketResult>'.encode())

    def say(self, status, code):
        self.answer(status, f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>No</Message></Error>'.encode())

    def answer(self, status, body, cut=False):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if cut else body)

    def log_message(self, *_):
        pass


def tar_of(files):
    """Returns a pax archive of {path: content}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


class CloudJob(job.JobTest):
    """Defines the data and functions of tests with any server."""

    def setUp(self):
        super().setUp()
        # Use a part of the sample, divided like the real data set, and as PNGs in class folders.
        records = job.sample_records("train")[:120]
        self.files = self.folder / "files"
        self.files.mkdir()
        for i in range(5):
            (self.files / f"data_batch_{i + 1}.bin").write_bytes(job.cifar_file(records[20 * i:20 * i + 20]))
        (self.files / "test_batch.bin").write_bytes(job.cifar_file(records[100:]))
        self.images = self.folder / "images"
        for i, (label, planes) in enumerate(records[:60]):
            path = self.images / ("test" if i % 3 == 2 else "train") / job.CLASSES[label] / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(job.png(job.SIDE, job.SIDE, job.interleaved(planes)))

    def cifar_objects(self):
        """Returns the objects. One name must be escaped in URLs and in XML, and one object is not data."""
        return {f"set & é+1/{path.name}": path.read_bytes() for path in self.files.iterdir()} | {
            "set & é+1/readme.html": b"<html>", "set & é+2/data_batch_1.bin": b"another set"}

    def environment(self, endpoint, *programs):
        """Returns an environment in which PATH has only `programs` and those that the shell and the launcher need."""
        folder = self.folder / "-".join(("bin", *programs))
        folder.mkdir(exist_ok=True)
        for program in programs:
            if not (folder / program).exists():
                (folder / program).symlink_to(shutil.which(program))
        return {"PATH": str(folder), "S3_ENDPOINT": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "no_proxy": "127.0.0.1"}

    def trained(self, ranks, name, data, *options, **environment):
        self.succeed(job.train(ranks, *OPTIONS, "--run-name", name, "--data", data, *options), **environment)
        run = self.runs / name
        return job.step_lines(run), job.epoch_lines(run), (run / "model.safetensors").read_bytes()


class Cloud(CloudJob):
    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_s3_equals_files(self):
        server = Server(self.cifar_objects())
        self.addCleanup(server.stop)
        curl = self.environment(server.url, "curl", "cat")
        data = "s3://bucket/set & é+1/"
        for ranks in job.rank_counts(1, 2):
            disk = self.trained(ranks, f"disk-{ranks}", str(self.files))
            self.assertEqual(len(disk[0]), 12)
            server.requests.clear()
            self.assertEqual(self.trained(ranks, f"s3-{ranks}", data, **curl), disk)
            # Any number of ranks requests every object once, and three parts of a list.
            gets = [path for path in server.requests if "?" not in path]
            self.assertEqual((len(gets), len(set(gets)), len(server.requests)), (6, 6, 9))
        # A busy server is asked again. Truncated answers are failures.
        server.busy = 2
        self.assertEqual(self.trained(1, "busy", data, **curl), self.trained(1, "files", str(self.files)))
        server.cut = True
        self.refuse(job.train(1, *OPTIONS, "--data", data, "--retries", "1"), "s3://bucket/set & é+1/data_batch_1.bin",
                    server.url, "failed 2 times", "exit status 18", **curl)
        server.cut = False

        # A refusal is not repeated, and the error states the server's reason. A wrong secret is refused.
        wrong = curl | {"AWS_SECRET_ACCESS_KEY": "not-this-one"}
        self.refuse(job.train(1, *OPTIONS, "--data", data), "403: SignatureDoesNotMatch: No", "failed 1 time:", **wrong)
        self.refuse(job.train(1, *OPTIONS, "--data", "s3://bucket/none-{0..0}.tar"), "bucket/none-0.tar at",
                    "failed 1 time:", "404: NoSuchKey: No", **curl)
        server.elsewhere = True
        for path in (data, "s3://bucket/none-{0..0}.tar"):
            self.refuse(job.train(1, *OPTIONS, "--data", path), "failed 1 time:", "PermanentRedirect: No; set AWS_REGION",
                        **curl)
        server.elsewhere = False
        self.refuse(job.train(1, *OPTIONS, "--data", "s3://bucket/none", "--retries", "0"), "none among 0", **curl)
        self.refuse(job.train(1, *OPTIONS, "--data", data), "aws, s5cmd or curl", **self.environment(server.url, "cat"))

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_object_names_are_not_commands(self):
        """Writers of a bucket choose its keys, and the owner of a server chooses its answers."""
        good, proof = self.files / "test_batch.bin", self.folder / "it-ran"
        server = Server({})
        self.addCleanup(server.stop)
        curl = self.environment(server.url, "curl", "cat", "touch")
        steal = f"touch {proof}; cat {good}"
        options = [*OPTIONS, "--data", "s3://bucket/set/", "--retries", "0"]
        refused = {
            f"x.bin\n-1 pipe:{steal}; x.bin": f"control characters, got s3://bucket/set/x.bin\\n-1 pipe:{steal}",
            "\0x.bin": "control characters",
            "\x1b[2Jx.bin": "s3://bucket/set/\\x1b[2Jx.bin",
            "k" * (1 << 20) + ".bin": "at most 1024 bytes",
        }
        for ranks in job.rank_counts(1, 2):
            for key, word in refused.items():
                server.objects = {f"set/{key}": good.read_bytes(), "set/z.bin": good.read_bytes()}
                self.refuse(job.train(ranks, *options), word, **curl)
            # These names are only names: the objects are read, and nothing else happens.
            names = [f"$({steal}).bin", f"`{steal}`.bin", f"';{steal};'.bin", f'";{steal};".bin', f"pipe:{steal}; x.bin",
                     f"|{steal}|.bin", "{0..9}[1-3]*?.bin", "-o x.bin", "\\.bin"]
            server.objects = {f"set/{name}": good.read_bytes() for name in names}
            self.assertIn("(9 shards)", self.succeed(job.train(ranks, *options), **curl))
            self.assertFalse(proof.exists())
            # The same holds for PNGs, whose names go into a list for the client.
            picture = job.png(job.SIDE, job.SIDE, bytes(3 * job.SIDE ** 2))
            keys = [f"{folder}/{name[:-4]}.png" for folder in ("cat", "../dog", "a\"b\\", "c' # d") for name in names]
            server.objects = {f"set/{key}": picture for key in keys}
            self.assertIn("4 classes", self.succeed(job.train(ranks, *options), **curl))
            self.assertFalse(proof.exists())

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_objects_equal_tars_and_files(self):
        """A bucket of PNGs trains as the folder that was uploaded, and as its tars."""
        files = {str(path.relative_to(self.images)): path.read_bytes() for path in self.images.rglob("*.png")}
        paths = sorted(files)
        server = Server({f"tars/{i}.tar": tar_of({path: files[path] for path in paths[i::3]}) for i in range(3)} |
                        {f"set 1&é/{path}": content for path, content in files.items()} |
                        {"set 1&é/readme.html": b"<html>", "set 1&é/train/.cat/x.png": b"?", "set 2/cat/1.png": b"?"})
        self.addCleanup(server.stop)
        (self.folder / "temporary").mkdir()
        curl = self.environment(server.url, "curl") | {"TMPDIR": str(self.folder / "temporary")}
        data = "s3://bucket/set 1&é/"
        for ranks in job.rank_counts(1, 2):
            disk = self.trained(ranks, f"disk-{ranks}", str(self.images))
            self.assertEqual(self.trained(ranks, f"tars-{ranks}", "s3://bucket/tars/", **curl), disk)
            server.requests.clear()
            self.assertEqual(self.trained(ranks, f"objects-{ranks}", data, "--cache", f"cache-{ranks}", **curl), disk)
            # Any number of ranks requests every object once.
            gets = [urllib.parse.unquote(path) for path in server.requests if "?" not in path]
            self.assertEqual(sorted(gets), [f"/bucket/set 1&é/{path}" for path in paths])
            server.requests.clear()
            self.assertEqual(self.trained(ranks, f"cached-{ranks}", data, "--cache", f"cache-{ranks}", **curl), disk)
            self.assertEqual(server.requests, [])
        disk = self.trained(1, "train", str(self.images / "train"))
        self.assertEqual(self.trained(1, "part", data + "train/", **curl), disk)
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])
        table = self.succeed([job.BUILD / "inspect", str(self.images)]).splitlines()
        self.assertEqual(table[0], f"PNG images in {self.images} (train and test): 40 + 20 images 32x32x3, 10 classes")
        self.assertEqual(table[1].split(), ["class", "train", "test"])
        for line, name in zip(table[2:], job.CLASSES, strict=True):
            counts = [len(list((self.images / part / name).glob("*.png"))) for part in ("train", "test")]
            self.assertEqual(line.split(), [name, *map(str, counts)])
        self.assertEqual(self.succeed([job.BUILD / "inspect", data], **curl).splitlines()[1:], table[1:])

        server.busy = 2  # of the list
        self.assertEqual(self.trained(1, "busy", data + "train/", **curl), disk)
        server.busy_get = 2
        self.assertEqual(self.trained(1, "busy-object", data + "train/", **curl), disk)
        server.cut = True
        self.refuse(job.train(1, *OPTIONS, "--data", data, "--retries", "1"), "s3://bucket/set 1&é/t", "objects,",
                    server.url, "failed 2 times", **curl)
        server.cut = False
        hidden = server.objects | {"set 1&é/train/cat/y.jpg": b"?"}
        server.objects = hidden
        self.refuse(job.train(1, *OPTIONS, "--data", data), "got 1 other image", "set 1&é/train/cat/y.jpg", **curl)
        self.succeed(job.train(1, *OPTIONS, "--data", data, "--skip-other-images"), **curl)
        server.objects = hidden | {"set 1&é/x.tar": b"?"}
        self.refuse(job.train(1, *OPTIONS, "--data", data), "got both, s3://bucket/set 1&é/x.tar and ",
                    "give a longer prefix", **curl)

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_server_dies_and_comes_back(self):
        ranks = job.rank_counts(1, 2)[-1]
        server = Server(self.cifar_objects())
        curl = self.environment(server.url, "curl")
        data, longer = "s3://bucket/set & é+1/", ["--epochs", "200", "--steps", "-1", "--checkpoint-every", "5"]
        command = job.train(ranks, *OPTIONS, *longer, "--data", data, "--retries", "2", "--run-name", "run")
        run, metrics = self.runs / "run", self.runs / "run" / "metrics.jsonl"
        process = self.start(command, **curl)
        self.assertTrue(self.wait_for(process, lambda: metrics.exists() and len(job.step_lines(run)) > 20))
        # A training does not need the server after it has begun. A resume does.
        server.stop()
        before = len(job.step_lines(run))
        self.assertTrue(self.wait_for(process, lambda: len(job.step_lines(run)) > before + 20))
        os.kill(process.pid, signal.SIGTERM)
        self.assertIn(self.finish(process).code, job.interrupted(ranks))
        steps = len(job.step_lines(run))
        resume = job.train(ranks, "--resume", "--run-name", "run", "--steps", str(steps + 7))
        content = metrics.read_bytes()
        begin = time.monotonic()
        self.refuse(resume, data, server.url, "failed 3 times", "exit status 7", **curl)
        self.assertGreaterEqual(time.monotonic() - begin, 1.5)  # 0.5 + 1 s
        self.assertEqual(metrics.read_bytes(), content)

        server = Server(server.objects, server.server_port)
        self.addCleanup(server.stop)
        self.assertIn(f"at step {steps}\n", self.succeed(resume, **curl))
        self.trained(ranks, "whole", str(self.files), *longer, "--steps", str(steps + 7))
        self.assertEqual(job.step_lines(run), job.step_lines(self.runs / "whole"))

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_server_dies_during_a_read(self):
        ranks = job.rank_counts(1, 2)[-1]
        server = Server(self.cifar_objects())
        curl, cache = self.environment(server.url, "curl"), ["--cache", "cache", "--retries", "1"]
        data = "s3://bucket/set & é+1/"
        server.dies_after = 3
        self.refuse(job.train(ranks, *OPTIONS, "--data", data, *cache), data, server.url, "failed 2 times",
                    "exit status 7", **curl)
        self.assertFalse(self.runs.exists())
        # The cache has the first objects. The next run needs the others, and the one after it needs none.
        server = Server(server.objects, server.server_port)
        disk = self.trained(ranks, "disk", str(self.files))
        self.assertEqual(self.trained(ranks, "back", data, *cache, **curl), disk)
        self.assertEqual(len(server.requests), 3)
        server.stop()
        self.assertEqual(self.trained(ranks, "cached", data, *cache, **curl), disk)

    def test_report_of_many_classes_is_small(self):
        image = job.png(32, 32, bytes(3072))
        files = {f"{i}.{kind}": content for i in range(40)
                 for kind, content in (("png", image), ("cls", str(i // 2 * 19999 // 19).encode()))}
        (self.folder / "many.tar").write_bytes(tar_of(files))
        run = self.train(1, "many", *job.TINY, "--epochs", "1", "--batch-size", "10", "--data", "pipe:cat many.tar")
        self.assertLess((run / "report.html").stat().st_size, 2_000_000)

    def test_pipe_tars_and_cache(self):
        ranks = job.rank_counts(1, 2)[-1]
        disk = self.trained(ranks, "disk", str(self.images))
        paths = sorted(path.relative_to(self.images) for path in self.images.rglob("*.png"))
        for i in range(3):
            (self.folder / f"shard-{i:03}.tar").write_bytes(
                tar_of({f"set/{path}": (self.images / path).read_bytes() for path in paths[::-1][i::3]}))
        data, cache = "pipe:cat shard-{000..002}.tar", ["--cache", "cache"]
        self.assertEqual(self.trained(ranks, "pipe", data, *cache), disk)
        # With the cache, the shards are not needed, unless the cache is damaged.
        (self.folder / "shard-001.tar").rename(self.folder / "away")
        self.assertEqual(self.trained(ranks, "cached", data, *cache), disk)
        self.refuse(job.train(ranks, *OPTIONS, "--data", data, "--retries", "0"), "pipe:cat shard-001.tar",
                    "failed 1 time:", "exit status 1", "No such file")
        for path in (self.folder / "cache").iterdir():
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        self.refuse(job.train(ranks, *OPTIONS, "--data", data, *cache, "--retries", "0"), "pipe:cat shard-001.tar")
        (self.folder / "away").rename(self.folder / "shard-001.tar")
        self.assertEqual(self.trained(ranks, "mended", data, *cache), disk)
        whole = (self.folder / "shard-002.tar").read_bytes()
        (self.folder / "shard-002.tar").write_bytes(whole[:5000])
        self.refuse(job.train(ranks, *OPTIONS, "--data", data, "--retries", "1"), "shard-002.tar", "failed 2 times",
                    "offset", "cut")

    def test_gzip_bombs(self):
        tar = tar_of({f"test/cat/{i}.png": job.png(job.SIDE, job.SIDE, bytes([i] * 3 * job.SIDE ** 2)) for i in range(20)})
        (self.folder / "padded.tar.gz").write_bytes(gzip.compress(tar) + bytes(512))
        bomb = gzip.compress(tar + bytes(3 << 20))
        (self.folder / "bomb.tar.gz").write_bytes(bomb)
        (self.folder / "liar.tar.gz").write_bytes(bomb[:-4] + bytes(4))
        options = [*OPTIONS, "--retries", "0", "--unpacked-mib", "1", "--data"]
        self.refuse(job.train(1, *options, "pipe:cat bomb.tar.gz"), "at most 1048576 bytes", "by the length at its end",
                    "--unpacked-mib")
        self.refuse(job.train(1, *options, "pipe:cat liar.tar.gz"), "at most 1048576 bytes of output, got more",
                    "--unpacked-mib")
        result = self.run_command(job.train(1, *options, "pipe:cat padded.tar.gz"))
        self.assertIn("images for training, got 20 for testing alone", result.err)  # it was unpacked and read


if __name__ == "__main__":
    job.main()
