# Tests training on data from the S3 server of another project (moto, if Python has it), with curl, and with aws if it
# is installed. The bits are the same as with files.
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request

import cloud
import job


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


@unittest.skipUnless(importlib.util.find_spec("moto") and importlib.util.find_spec("flask"),
                     "Python has no moto, an S3 server")
class ForeignServer(cloud.CloudJob):
    def test_same_as_files(self):
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (server.kill(), server.wait()))
        url = f"http://127.0.0.1:{port}"

        def put(path, content=b""):
            request = urllib.request.Request(url + urllib.parse.quote(path), content,
                                             {"Content-Type": "application/octet-stream"}, method="PUT")
            urllib.request.urlopen(request, timeout=10).close()

        self.wait_for(server, lambda: answers(url))
        put("/bucket")
        for key, content in self.cifar_objects().items():
            put(f"/bucket/{key}", content)
        ranks = job.rank_counts(1, 2)[-1]
        disk = self.trained(ranks, "disk", str(self.files))
        for client in filter(shutil.which, ("curl", "aws")):
            environment = self.environment(url, client)
            if client == "aws":  # a script, which needs other programs
                environment["PATH"] = os.environ["PATH"]
            self.assertEqual(self.trained(ranks, client, "s3://bucket/set & é+1/", **environment), disk, client)


job.main()
