#!/bin/sh
# A training on several nodes under SLURM, with MPICH. From the root of the repository, built on a disk that all see:
#
#     sbatch tools/slurm.sh --data ~/data/cifar-10-batches-bin --epochs 50     # options of train_cifar
#
# Two minutes before the time is over, SLURM sends USR1: the training ends with a checkpoint, and the job goes back into
# the queue, to go on from there. After a crash, tools/run.sh starts the training again within the same job.
#
# To adapt: partition, account and modules of the place; nodes and time; and how many ranks there are, which is
#
#     per node      --ntasks-per-node=1                         --cpus-per-task=<cores of a node>
#     per socket    --ntasks-per-node=2 --ntasks-per-socket=1   --cpus-per-task=<cores of a socket>
#     per GPU       --ntasks-per-node=4 --gpus-per-node=4       --cpus-per-task=<cores / GPUs of a node>
#
# Each rank takes the GPU of its number on its node. 120 seconds must suffice for a test and a checkpoint.
#SBATCH --job-name=ringgrad
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -eu

for word do
    case $word in
    --runs | --runs=* | --run-name | --run-name=* | --resume)
        echo "slurm.sh: expected options of a training, got $word: the run is runs/slurm-JOB, where the job" \
            "looks for it when it comes back; for another disk, make runs a link" >&2
        exit 2
        ;;
    esac
done
cd "$SLURM_SUBMIT_DIR"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" # srun does not take it from the job by itself
name=slurm-$SLURM_JOB_ID # which a job keeps when it comes back
if ls "runs/$name/checkpoint/step-"*.safetensors > /dev/null 2>&1; then
    set -- --resume --run-name "$name"
else
    rm -rf "runs/$name" # it had been begun, but there is nothing to go on from
    set -- --run-name "$name" "$@"
fi

# MPICH's mpiexec knows the nodes of the job, and starts its helpers there by srun. Where MPICH was built for SLURM's
# own start, it is "srun --mpi=pmi2" instead of "mpiexec -n ... -ppn ...".
sh tools/run.sh --max-restarts 3 -- \
    mpiexec -n "$SLURM_NTASKS" -ppn "$SLURM_NTASKS_PER_NODE" \
    build/train_cifar --threads "$SLURM_CPUS_PER_TASK" "$@" &
training=$!
trap 'kill -USR1 $training' USR1 TERM
status=0
wait $training || status=$?
while kill -0 $training 2> /dev/null; do # a signal has ended the wait, not the training
    status=0
    wait $training || status=$?
done
[ $status != 75 ] || scontrol requeue "$SLURM_JOB_ID" # interrupted, with a checkpoint
exit $status
