# Tests training on a bucket of an S3 server on this machine, by the aws client if that is installed, and on the output
# of commands: the bits are the same as with the folder, and what goes wrong there gives one clear error.
import http.server
import io
import os
import shutil
import signal
import tarfile
import threading
import unittest
import urllib.parse
import xml.sax.saxutils

import job

OPTIONS = [*job.TINY, "--batch-size", "20", "--steps", "12", "--seed", "5"]


class Server(http.server.ThreadingHTTPServer):
    """Answers ListObjectsV2 and GetObject from the dictionary `objects`."""
    daemon_threads = True
    request_queue_size = 64  # a client opens many connections at the same time

    def __init__(self, objects):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.gets = objects, []
        self.page = 30          # objects per part of a list
        self.busy = 0           # number of requests to answer with 503
        self.busy_every = 0     # if not 0: every such request is answered with 503, too
        self.requests = 0
        self.forbidden = set()  # keys to answer with 403
        self.listed_sizes = {}  # sizes by key that the list has instead of the true ones
        self.endless = None     # key of an object that never ends
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path, _, query = self.path.partition("?")
        _, _, key = urllib.parse.unquote(path)[1:].partition("/")
        self.server.requests += 1
        if self.server.busy > 0 or (self.server.busy_every and self.server.requests % self.server.busy_every == 0):
            self.server.busy -= self.server.busy > 0
            return self.say(503, "SlowDown")
        if not key:
            return self.list(urllib.parse.parse_qs(query))
        if key in self.server.forbidden:
            return self.say(403, "AccessDenied")
        if key not in self.server.objects:
            return self.say(404, "NoSuchKey")
        self.server.gets.append(key)
        if key == self.server.endless:
            return self.never_end()
        self.answer(200, self.server.objects[key])

    def list(self, query):
        prefix, after = query["prefix"][0], query.get("continuation-token", [""])[0]
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        page = self.server.page
        more = len(keys) > page
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated><EncodingType>url</EncodingType>"
        for key in keys[:page]:
            size = self.server.listed_sizes.get(key, len(self.server.objects[key]))
            text += (f"<Contents><Key>{urllib.parse.quote(key)}</Key><Size>{size}</Size>"
                     f"<LastModified>2026-01-0{1 + len(self.server.objects[key]) % 9}T00:00:00.000Z</LastModified>"
                     f'<ETag>"e"</ETag></Contents>')
        if more:
            text += f"<NextContinuationToken>{xml.sax.saxutils.escape(keys[page - 1])}</NextContinuationToken>"
        self.answer(200, f'<?xml version="1.0"?><ListBucketResult>{text}</ListBucketResult>'.encode())

    def never_end(self):
        self.send_response(200)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"e"')
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            pass  # the client has gone

    def say(self, status, code):
        self.answer(status, f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>No</Message></Error>'.encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"e"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


class CloudTest(job.JobTest):
    def server(self, objects):
        """Returns a server and the environment in which a client uses it."""
        server = Server(objects)
        self.addCleanup(lambda: (server.shutdown(), server.server_close()))
        return server, {"S3_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "AWS_ACCESS_KEY_ID": "id",
                        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu-west-1", "no_proxy": "127.0.0.1"}


class Cloud(CloudTest):
    def setUp(self):
        super().setUp()
        self.images = self.folder / "images"
        for i, (label, planes) in enumerate(job.sample_records("train")[:60]):
            path = self.images / ("test" if i % 3 == 2 else "train") / job.CLASSES[label] / f"{i:03}.png"
            job.write_png(path, job.SIDE, job.SIDE, job.interleaved(planes))
        self.files = {str(path.relative_to(self.images)): path.read_bytes() for path in self.images.rglob("*.png")}

    def trained(self, ranks, name, data, *options, **environment):
        self.succeed(job.train(ranks, *OPTIONS, "--run-name", name, "--data", data, *options), **environment)
        run = self.runs / name
        return job.step_lines(run), job.tensors(run / "model.safetensors")

    @unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
    def test_bucket_equals_folder(self):
        server, aws = self.server({f"set 1&é/{path}": content for path, content in self.files.items()} |
                                  {"set 1&é/readme.html": b"<html>", "set 1&é/train/.cat/x.png": b"?", "set 2/x.png": b"?"})
        data = "s3://bucket/set 1&é/"
        for ranks in job.rank_counts(1, 2):
            disk = self.trained(ranks, f"disk-{ranks}", str(self.images))
            self.assertEqual(self.trained(ranks, f"s3-{ranks}", data, **aws), disk)
        # Every object was copied once. A new object is copied, and a removed one disappears.
        self.assertEqual(len(server.gets), len(self.files) + 2)
        table = self.succeed([job.BUILD / "inspect", str(self.images)]).splitlines()[1:]
        self.assertEqual(self.succeed([job.BUILD / "inspect", data], **aws).splitlines()[1:], table)
        removed, (added, content) = max(self.files), min(self.files.items())
        del server.objects[f"set 1&é/{removed}"]
        server.objects[f"set 1&é/{added}.png"] = content
        (self.images / removed).unlink()
        (self.images / f"{added}.png").write_bytes(content)
        self.assertEqual(self.trained(1, "changed", data, **aws), self.trained(1, "changed-disk", str(self.images)))
        self.assertEqual(len(server.gets), len(self.files) + 3)
        described = self.succeed([job.BUILD / "inspect", self.folder / "cache-home" / "ringgrad"])
        self.assertIn(f"images in {data}", described)
        out = self.succeed([job.BUILD / "predict", self.runs / "changed", data, "--quiet"], **aws)
        self.assertIn(f"{len(list(self.images.glob('test/*/*')))} images;", out)
        told = self.succeed([job.BUILD / "predict", self.runs / "changed", "--quiet"], **aws)
        self.assertIn(out.splitlines()[0], told)  # the images of the run are those of the bucket

    @unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
    def test_bucket_layouts(self):
        """Folders named like sets are sets in a bucket too, with the same line about them."""
        for train, test in (("a/training_set", "a/test_set"), ("Train Images", "unseen")):
            files = {f"{train if path.startswith('train') else test}/{path.partition('/')[2]}": content
                     for path, content in self.files.items()}
            for path, content in files.items():
                (self.folder / test / path).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / test / path).write_bytes(content)
            server, aws = self.server({f"set/{path}": content for path, content in files.items()})
            disk = self.succeed([job.BUILD / "inspect", str(self.folder / test)])
            self.assertIn(" is for training and ", disk)
            self.assertEqual(self.succeed([job.BUILD / "inspect", "s3://bucket/set/"], **aws).splitlines()[1:],
                             disk.splitlines()[1:])

    @unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
    def test_bucket_of_others(self):
        """Writers of a bucket choose its keys, and the owner of a server chooses its answers."""
        picture, proof = self.files[min(self.files)], self.folder / "it-ran"
        names = [f"$(touch {proof})", f"`touch {proof}`", f"';touch {proof};'", f'";touch {proof};"', "{0..9}*?", "-o x",
                 "\\", "a\nb", "\x1b[2J"]
        server, aws = self.server({f"set/{folder}/{name}.png": picture for folder in ("cat", "c' # d") for name in names})
        command = job.train(1, *OPTIONS, "--batch-size", "4", "--data", "s3://bucket/set/")
        self.assertIn("2 classes", self.succeed(command, **aws))
        self.assertFalse(proof.exists())
        server.busy = 2  # the client asks again
        self.succeed(command, **aws)
        server.objects["set/cat/../../../out.png"] = picture
        self.run_command(command, **aws)  # whether the client refuses or skips it
        self.assertEqual(list(self.folder.rglob("out.png")), [])
        del server.objects["set/cat/../../../out.png"]
        server.objects["set/cat/secret.png"] = picture
        server.forbidden = {"set/cat/secret.png"}
        self.refuse(command, "s3://bucket/set/", "AccessDenied", **aws)
        self.refuse(job.train(1, *OPTIONS, "--data", "s3://bucket/none/"), "expected class folders of images, got none",
                    **aws)

    @unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
    def test_other_sizes_than_listed(self):
        server, aws = self.server({f"set/{path}": content for path, content in self.files.items()})
        server.listed_sizes = {key: 1 for key in list(server.objects)[::7]}
        self.assertEqual(self.trained(1, "listed", "s3://bucket/set/", **aws), self.trained(1, "disk", str(self.images)))

    @unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
    @unittest.skipUnless(job.can_mount(), "may not mount a tmpfs")
    def test_copies_without_end(self):
        server, aws = self.server({f"set/{path}": content for path, content in self.files.items()})
        server.endless = f"set/{min(self.files)}"
        for data, filled, words in (("s3://bucket/set/", 0, ()), ("pipe:cat /dev/zero", 0, ()),
                                    ("pipe:cat /dev/zero", 49_900, ("stay free, got", "--cache"))):
            script = f"""
                mkdir -p small && mount -t tmpfs -o size=50000k none small || exit 99
                head -c {filled}k /dev/zero > small/filled; "$@" --cache small/cache"""
            self.refuse(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
                         *job.train(1, *OPTIONS, "--data", data)], data, *words, **aws)

    def test_no_client(self):
        self.refuse(job.train(1, *OPTIONS, "--data", "s3://bucket/set/"), "expected aws, s5cmd or rclone", "awscli",
                    PATH="/none")

    def test_tar_equals_folder(self):
        ranks = job.rank_counts(1, 2)[-1]
        disk = self.trained(ranks, "disk", str(self.images))
        archive = self.folder / "set.tar"
        archive.write_bytes(tar_of({f"set/{path}": content for path, content in self.files.items()}))
        cache = ["--cache", "cache"]
        for name, options in (("piped", []), ("copied", cache)):
            self.assertEqual(self.trained(ranks, name, "pipe:cat set.tar", *options), disk)
        # The copy is kept only with --cache.
        whole = archive.read_bytes()
        archive.write_bytes(whole[:5000])
        self.assertEqual(self.trained(ranks, "again", "pipe:cat set.tar", *cache), disk)
        self.refuse(job.train(ranks, *OPTIONS, "--data", "pipe:cat set.tar"), "pipe:cat set.tar", "cut off")
        kept = [path.suffix for path in (self.folder / "cache-home" / "ringgrad").iterdir()]
        self.assertEqual(kept, [".images"])  # a packed set of the folder alone

    def test_killed_while_copying(self):
        ready, go = self.folder / "ready", self.folder / "go"
        (self.folder / "set.tar").write_bytes(tar_of(self.files))
        data = f"pipe:head -c 9000 set.tar; touch {ready}; until [ -e {go} ]; do sleep 0.02; done; tail -c +9001 set.tar"
        command = job.train(1, *OPTIONS, "--run-name", "copied", "--data", data, "--cache", "cache")
        process = self.start(command)
        self.assertTrue(self.wait_for(process, ready.exists))
        os.kill(process.pid, signal.SIGKILL)
        self.finish(process)
        self.trained(1, "disk", str(self.images), "--cache", "cache")
        self.assertEqual([path.suffix for path in (self.folder / "cache").iterdir()], [".images"])
        go.touch()
        self.succeed(command)
        self.assertEqual(job.step_lines(self.runs / "copied"), job.step_lines(self.runs / "disk"))

    def test_names_the_process_that_it_waits_for(self):
        (self.folder / "set.tar").write_bytes(tar_of(self.files))
        stopped = self.folder / "stopped"
        data = f"pipe:[ -e {stopped} ] || {{ touch {stopped}; kill -STOP $PPID; }}; cat set.tar"
        first, second = (job.train(1, *OPTIONS, "--run-name", name, "--data", data, "--cache", "cache") for name in "ab")
        process = self.start(first)
        self.assertTrue(self.wait_for(process, stopped.exists))
        waiting = self.start(second)
        self.assertIn(f"waiting for process {process.pid} on ", waiting.stderr.readline())
        os.kill(process.pid, signal.SIGCONT)
        for one in (process, waiting):
            self.finish(one, 0)

    def test_report_of_many_classes_is_small(self):
        image = job.png(32, 32, bytes(3072))
        (self.folder / "many.tar").write_bytes(tar_of({f"{i // 2:05}/{i}.png": image for i in range(4000)}))
        run = self.train(1, "many", *job.TINY, "--epochs", "1", "--batch-size", "400", "--data", "pipe:cat many.tar")
        self.assertLess((run / "report.html").stat().st_size, 2_000_000)


if __name__ == "__main__":
    job.main()
