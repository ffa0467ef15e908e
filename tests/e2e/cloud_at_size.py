# Tests training on a bucket of 4000 objects of a server that is sometimes busy: the set is loaded whole, or not at all.
import random
import shutil
import unittest

import cloud
import job

OPTIONS = [*job.TINY, "--batch-size", "200", "--steps", "2", "--seed", "5", "--data", "s3://bucket/set/"]


@unittest.skipUnless(shutil.which("aws"), "no aws, a client for S3 (Debian: awscli)")
class CloudAtSize(cloud.CloudTest):
    def test_busy_server(self):
        random.seed(1)
        server, aws = self.server({f"set/{'cat' if i % 2 else 'dog'}/{i:04}.png": job.png(8, 8, random.randbytes(192))
                                   for i in range(4000)})
        server.page, server.busy_every = 1000, 200
        self.assertIn("3200 + 800 images 8x8x3, 2 classes", self.succeed(job.train(1, *OPTIONS), **aws))
        self.assertEqual(sorted(server.gets), sorted(server.objects))
        # A few objects that may not be read, and others that have changed
        kept, secret = sorted(server.objects)[:2000], sorted(server.objects)[2000::500]
        server.objects |= {key: job.png(8, 8, random.randbytes(192)) + b"more" for key in secret + kept[::100]}
        server.forbidden = set(secret)
        self.refuse(job.train(1, *OPTIONS), "s3://bucket/set/", "AccessDenied", **aws)
        server.forbidden = set()
        self.assertIn("3200 + 800 images 8x8x3, 2 classes", self.succeed(job.train(1, *OPTIONS), **aws))


if __name__ == "__main__":
    job.main()
