#!/bin/sh
# Trains on several nodes under SLURM with MPICH. Build on a disk that all nodes share, and submit from the repository:
#
#     sbatch tools/slurm.sh --data ~/data/cifar-10-batches-bin --epochs 50     # options of train_cifar
#
# Two minutes before the time limit, SLURM sends USR1. The training then ends with a checkpoint, and the job returns to
# the queue to resume from it. After a crash, tools/run.sh restarts the training within the same job.
#
# Adapt these to your cluster: partition, account, modules, number of nodes, time limit, and the number of ranks:
#
#     per node      --ntasks-per-node=1                         --cpus-per-task=<cores of a node>
#     per socket    --ntasks-per-node=2 --ntasks-per-socket=1   --cpus-per-task=<cores of a socket>
#     per GPU       --ntasks-per-node=4 --gpus-per-node=4       --cpus-per-task=<cores / GPUs of a node>
#
# On its node, the first rank uses GPU 0, the second one GPU 1, and so on. A test and a checkpoint together must take
# less than the 120 seconds between the signal and the time limit.
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
# srun does not take it over from sbatch. mpiexec has srun start one helper per node, which gets the CPUs of its ranks.
export SRUN_CPUS_PER_TASK=$((SLURM_CPUS_PER_TASK * SLURM_NTASKS_PER_NODE))
name=slurm-$SLURM_JOB_ID # a requeued job keeps its id
export RG_JOB="$name"    # the owner of the run; see run.sh
if ls "runs/$name/checkpoint/step-"*.safetensors > /dev/null 2>&1; then
    set -- --resume --run-name "$name"
else # an earlier start left no checkpoint
    ! grep -qsF "\"job\": \"$name\"" "runs/$name/owner.json" || rm -rf "runs/$name"
    set -- --run-name "$name" "$@"
fi

# MPICH's mpiexec finds the nodes of the job and starts its helpers with srun. If MPICH was built for SLURM's launcher,
# replace "mpiexec -n ... -ppn ..." by "srun --mpi=pmi2", and set SRUN_CPUS_PER_TASK to SLURM_CPUS_PER_TASK.
sh tools/run.sh --max-restarts 3 -- \
    mpiexec -n "$SLURM_NTASKS" -ppn "$SLURM_NTASKS_PER_NODE" \
    build/train_cifar --threads "$SLURM_CPUS_PER_TASK" "$@" &
training=$!
trap 'kill -USR1 $training' USR1 TERM
status=0
wait $training || status=$?
while kill -0 $training 2> /dev/null; do # a signal ended the wait, but not the training
    status=0
    wait $training || status=$?
done
[ $status != 75 ] || scontrol requeue "$SLURM_JOB_ID" # interrupted; resumes if there is a checkpoint
exit $status
