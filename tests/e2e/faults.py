# A rank that throws, that is in another operation, or that stops answering: the job ends at once, not with 0, and says
# why. On standard error there may be a line of more than one rank.
import unittest

import job


class Faults(job.JobTest):
    def end(self, *words, fault):
        result = self.run_command([job.MPIEXEC, "-n", "3", str(job.BUILD / "tests" / "mpi_par"), fault, "1"])
        self.assertNotEqual(result.code, 0, fault)
        for word in words:
            self.assertIn(word, result.err, fault)

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_faults(self):
        self.end("told to throw", "(rank 1)", fault="--throw")
        self.end("all ranks must make the same calls", fault="--mismatch")
        self.end("rank 1 may have stopped", "RG_DEADLINE_S", fault="--late")


job.main()
