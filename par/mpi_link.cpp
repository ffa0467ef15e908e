// Uses persistent point-to-point requests on a communicator of its own. Only these calls wait for other ranks inside
// the MPI library: MPI_Init_thread, six collectives at start-up (two make communicators, two find each node's first
// rank, one gathers host names, one cores), opening and closing a shared window, for some ranks with communicators
// of theirs, the end (prepare_to_finalize(), MPI_Finalize) and MPI_Abort. All but closing a window have a deadline
// (Alarm). It cannot name a missing rank, so all ranks meet once after MPI_Init_thread.
//
// Asks for MPI_THREAD_MULTIPLE, because another thread than the main one may sum gradients (models/run/gradient_sum.h).
// Accepts MPI_THREAD_SERIALIZED too, since only one thread at a time calls MPI. Errors of the communicator are
// returned as codes; check() makes them rg::Error.

#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1

#include "par/mpi_link.h"

#include "par/peers.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include <mpi.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace rg::par {

namespace {

constexpr size_t kPage = 4096;
constexpr double kWithdrawSeconds = 0.02, kAbortSeconds = 10;
// Longer than the time from the first to the last rank that leaves a barrier, even if they leave it one by one.
constexpr std::chrono::milliseconds kPauseBeforeFinalize{500};
constexpr int kShort = int(kMessageBytes); // MPI libraries send such a message without asking the receiver (peers.h)

void check(int code, const char* operation, int rank, int peer = -1, size_t bytes = 0) {
    if (code == MPI_SUCCESS) [[likely]]
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0, kind = 0;
    MPI_Error_class(code, &kind);
    MPI_Error_string(kind, text, &length);
    fail(operation, ": expected success, got: ", std::string_view(text, size_t(length)), " (rank ", rank, ", peer ",
         peer, ", ", bytes, " bytes", kind == MPI_ERR_TRUNCATE ? "; the peer sent a longer message)" : ")");
}

/// Gives a deadline to a call of the MPI library that waits for other ranks and has no deadline of its own. If it
/// passes while the Alarm exists, the process ends with an error.
class Alarm {
public:
    /// `caller` is this rank, for the error.
    Alarm(const char* call, const std::string& caller, double seconds) {
        text = cat("error: ", call, ": expected all ranks, got nothing in ", seconds,
                   " s; some rank has stopped, or is slow; RG_DEADLINE_S sets the limit (", caller, ")\n");
        std::signal(SIGALRM, [](int) {
            if (write(STDERR_FILENO, text.data(), text.size()) >= 0) _exit(1);
            _exit(2);
        });
        alarm(unsigned(std::ceil(seconds)));
    }
    ~Alarm() { alarm(0); }
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;

private:
    static inline std::string text; // prepared in advance: a signal handler must not format text
};

using Host = std::array<char, MPI_MAX_PROCESSOR_NAME>; // ends with a zero byte

/// Holds the ranks and hosts that a link is made from.
struct Topology {
    MPI_Comm comm = MPI_COMM_NULL, node = MPI_COMM_NULL; // communicators of all ranks, and of the ranks of this node
    int rank = 0, size = 1, local_rank = 0, local_size = 1, core_sharers = 1;
    std::vector<int> first_of_node; // first_of_node[r]: the lowest rank on the node of rank r
    std::vector<Host> hosts;        // hosts[r]: the host of rank r
};

/// Removes the signal handlers of UCX, the transport library of some builds of MPICH: they answer a crash with a page
/// of text. Setting UCX_ERROR_SIGNALS here would be too late, because UCX reads its environment before main(). If the
/// user has set it, or UCX_HANDLE_ERRORS, the handlers stay.
void restore_signals() {
    if (!std::getenv("UCX_ERROR_SIGNALS") && !std::getenv("UCX_HANDLE_ERRORS"))
        for (const int number : {SIGILL, SIGBUS, SIGFPE, SIGSEGV}) std::signal(number, SIG_DFL);
}

/// Blocks until all ranks have called it. Throws Error at the deadline, with the names of the missing ranks on rank 0.
/// The others only know whether rank 0 is missing, so they wait a little longer for its error to end the job.
void meet(int rank, int size, double seconds) {
    constexpr double kLonger = 2;
    std::vector<int> peers{0};
    if (rank == 0) {
        peers.resize(size_t(size - 1));
        std::iota(peers.begin(), peers.end(), 1);
    }
    std::vector<MPI_Request> requests(peers.size());
    const auto send = [&] {
        for (size_t i = 0; i < peers.size(); ++i)
            MPI_Isend(nullptr, 0, MPI_BYTE, peers[i], 0, MPI_COMM_WORLD, &requests[i]);
    };
    const auto wait = [&](double limit) {
        int done = 0;
        for (const double begin = MPI_Wtime(); !done && MPI_Wtime() < begin + limit;) {
            MPI_Testall(int(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
            if (!done) std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        if (done) return;
        std::string missing;
        for (size_t i = 0; i < peers.size(); ++i) {
            MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
            if (!done) missing += cat(missing.empty() ? "" : ", ", peers[i]);
        }
        fail("MPI_Init_thread: expected all ", size, " ranks to return from it, got no word from rank ", missing,
             " in ", limit, " s: stopped, or slow; RG_DEADLINE_S sets the limit (rank ", rank, ")");
    };
    if (rank != 0) send(), wait(seconds + kLonger);
    for (size_t i = 0; i < peers.size(); ++i)
        MPI_Irecv(nullptr, 0, MPI_BYTE, peers[i], 0, MPI_COMM_WORLD, &requests[i]);
    wait(rank == 0 ? seconds : seconds + kLonger);
    if (rank == 0) send(), wait(seconds);
}

Topology start_mpi(int& argc, char**& argv) {
    const pid_t launcher = getppid();
    const double deadline = environment_deadline().value_or(kDeadline); // read_environment() reports a bad deadline
    int level = MPI_THREAD_SINGLE;
    {
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        const Alarm limit("MPI_Init_thread", cat("process ", getpid(), " on ", host), deadline);
        check(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread", 0);
    }
    restore_signals();
    RG_CHECK(level >= MPI_THREAD_SERIALIZED,
             "MPI_Init_thread: expected an MPI that several threads may call, got one that does not; install MPICH");
    Topology topology;
    MPI_Comm_rank(MPI_COMM_WORLD, &topology.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &topology.size);
    // Without its launcher, a rank would continue where nobody sees it. So the kernel sends it SIGTERM when the
    // launcher ends.
    if (topology.size > 1) end_with(launcher), meet(topology.rank, topology.size, deadline);
    const Alarm limit("start", cat("rank ", topology.rank), deadline);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &topology.comm), "MPI_Comm_dup", 0);
    MPI_Comm_set_errhandler(topology.comm, MPI_ERRORS_RETURN);
    check(MPI_Comm_split_type(topology.comm, MPI_COMM_TYPE_SHARED, topology.rank, MPI_INFO_NULL, &topology.node),
          "MPI_Comm_split_type", topology.rank);
    MPI_Comm_rank(topology.node, &topology.local_rank);
    MPI_Comm_size(topology.node, &topology.local_size);
    const auto gather = [&](const auto& own, MPI_Comm comm, int ranks) {
        std::vector<std::decay_t<decltype(own)>> all(static_cast<size_t>(ranks));
        check(MPI_Allgather(&own, sizeof own, MPI_CHAR, all.data(), sizeof own, MPI_CHAR, comm), "MPI_Allgather",
              topology.rank);
        return all;
    };
    int first = topology.rank;
    check(MPI_Bcast(&first, 1, MPI_INT, 0, topology.node), "MPI_Bcast", topology.rank);
    topology.first_of_node = gather(first, topology.comm, topology.size);
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        std::memset(&cores, 0xff, sizeof cores); // the call fails if there are more than 1024 cores
    topology.core_sharers = count_sharers(cores, gather(cores, topology.node, topology.local_size));
    Host host{};
    int length = 0;
    MPI_Get_processor_name(host.data(), &length);
    topology.hosts = gather(host, topology.comm, topology.size);
    return topology;
}

/// Returns true if all ranks of the node can use `memory`, this rank's part of the window, like ordinary memory. It
/// must begin on a page and really exist, as far as the kernel can tell. If so, also fills it with zeros.
bool is_usable(MPI_Win window, void* memory, size_t bytes) {
    int *model = nullptr, has_model = 0;
    MPI_Win_get_attr(window, MPI_WIN_MODEL, &model, &has_model);
    if (!has_model || *model != MPI_WIN_UNIFIED || reinterpret_cast<uintptr_t>(memory) % kPage != 0) return false;
#ifdef MADV_POPULATE_WRITE
    // A container's /dev/shm is often small (64 MB); the first touch of memory beyond it raises SIGBUS. madvise()
    // returns an error instead. Kernels that do not know this request return EINVAL.
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) return false;
#endif
    std::memset(memory, 0, bytes); // this rank touches it first, here or above, so it lies near this rank's core
    return true;
}

class MpiLink final : public Link {
public:
    explicit MpiLink(Topology topology)
        : Link(topology.rank, topology.size, topology.local_rank, topology.local_size),
          topology_(std::move(topology)),
          exceptions_(std::uncaught_exceptions()) {
        set_nodes(topology_.first_of_node);
        set_core_sharers(topology_.core_sharers);
    }

    ~MpiLink() override {
        if (std::uncaught_exceptions() > exceptions_) MpiLink::abort(1); // finalising would wait for the other ranks
        const Alarm limit("MPI_Finalize", cat("rank ", rank()), deadline());
        if (local_size() != size()) prepare_to_finalize();
        MPI_Comm_free(&topology_.node);
        MPI_Comm_free(&topology_.comm);
        MPI_Finalize();
    }

    void abort(int code) override {
        // run_ranks_main() has printed the error, if it is a std::exception. Discards the messages of MPI_Abort.
        if (!std::freopen("/dev/null", "w", stderr)) std::fclose(stderr);
        const Alarm limit("MPI_Abort", cat("rank ", rank()), kAbortSeconds);
        MPI_Abort(MPI_COMM_WORLD, code);
    }

    std::string name_of(int rank) const override {
        return cat("rank ", rank, " on ", topology_.hosts[size_t(rank)].data());
    }

private:
    /// Makes MPI_Finalize safe between machines. With MPICH over UCX and TCP, a rank in MPI_Finalize asks each peer on
    /// another machine to which it has sent messages for an answer. A rank that has all its answers leaves and answers
    /// nobody any more, so a peer that asks it later waits forever. So rank 0 and the lowest rank of the other machines
    /// leave last: after a barrier, they sleep until all others must be in MPI_Finalize. Meanwhile they make no MPI
    /// calls, because any call would answer. Before the barrier, they exchange a message with every rank of another
    /// machine. So no other rank can leave before both have answered it, and their own questions arrive before their
    /// answers.
    void prepare_to_finalize() {
        const std::vector<int>& first_of_node = topology_.first_of_node;
        int first_elsewhere = 0;
        while (first_of_node[size_t(first_elsewhere)] == first_of_node[0]) ++first_elsewhere;
        const auto is_last = [&](int q) { return q == 0 || q == first_elsewhere; };
        std::vector<MPI_Request> requests;
        for (const int q : others())
            if (first_of_node[size_t(q)] != first_of_node[size_t(rank())] && (is_last(q) || is_last(rank()))) {
                MPI_Isend(nullptr, 0, MPI_BYTE, q, 0, topology_.comm, &requests.emplace_back());
                MPI_Irecv(nullptr, 0, MPI_BYTE, q, 0, topology_.comm, &requests.emplace_back());
            }
        MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
        MPI_Barrier(topology_.comm);
        std::this_thread::sleep_for((is_last(rank()) ? 2 : 1) * kPauseBeforeFinalize);
    }

    std::unique_ptr<SharedWindow> do_open_shared(size_t bytes, std::span<const int> ranks) override {
        bytes = (bytes + kPage - 1) / kPage * kPage;
        const Alarm limit("open_shared", cat("rank ", rank()), deadline());
        if (int(ranks.size()) == size()) return open_window(bytes, topology_.comm, topology_.node);
        MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
        MPI_Comm comm = MPI_COMM_NULL, node = MPI_COMM_NULL;
        MPI_Comm_group(topology_.comm, &all);
        MPI_Group_incl(all, int(ranks.size()), ranks.data(), &some);
        check(MPI_Comm_create_group(topology_.comm, some, 0, &comm), "MPI_Comm_create_group", rank());
        check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node), "MPI_Comm_split_type",
              rank());
        std::unique_ptr<SharedWindow> window = open_window(bytes, comm, node);
        MPI_Comm_free(&node), MPI_Comm_free(&comm); // the window keeps what it needs of them
        MPI_Group_free(&some), MPI_Group_free(&all);
        return window;
    }

    /// Collective over `comm`. `node` has those of its ranks that are on this node.
    std::unique_ptr<SharedWindow> open_window(size_t bytes, MPI_Comm comm, MPI_Comm node) const {
        MPI_Info info = MPI_INFO_NULL;
        MPI_Info_create(&info);
        MPI_Info_set(info, "alloc_shared_noncontig", "true"); // lets the library place each part near its rank
        MPI_Win window = MPI_WIN_NULL;
        void* local_part = nullptr;
        const int code = MPI_Win_allocate_shared(MPI_Aint(bytes), 1, info, node, &local_part, &window);
        MPI_Info_free(&info);
        // All ranks must use a window, or none: if one gave up alone, the others would wait for it in vain.
        enum { allocated, usable };
        int ok[] = {code == MPI_SUCCESS, code == MPI_SUCCESS && is_usable(window, local_part, bytes)};
        check(MPI_Allreduce(MPI_IN_PLACE, ok, 2, MPI_INT, MPI_MIN, comm), "open_shared", rank(), -1, bytes);
        if (!ok[usable]) {
            if (ok[allocated]) MPI_Win_free(&window);
            return nullptr;
        }
        // Locks the window once for its lifetime. In the unified memory model, plain loads and stores ordered by
        // atomics suffice.
        MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
        std::vector<std::byte*> parts;
        int on_node = 0;
        MPI_Comm_size(node, &on_node);
        for (int q = 0; q < on_node; ++q) {
            MPI_Aint length = 0;
            int unit = 0;
            void* part = nullptr;
            check(MPI_Win_shared_query(window, q, &length, &unit, &part), "MPI_Win_shared_query", rank(), q, bytes);
            parts.push_back(static_cast<std::byte*>(part));
        }
        const auto release = [window, exceptions = std::uncaught_exceptions()](void*) mutable {
            if (std::uncaught_exceptions() > exceptions) return; // freeing would block, and the job ends anyway
            MPI_Win_unlock_all(window);
            MPI_Win_free(&window);
        };
        return std::make_unique<SharedWindow>(SharedWindow{std::move(parts), bytes, {nullptr, release}});
    }

    void do_open_channel(int i, void* data) override {
        if (requests_.size() <= size_t(i)) requests_.resize(size_t(i) + 1, MPI_REQUEST_NULL);
        const ChannelState& s = slot(i);
        MPI_Request* request = &requests_[size_t(i)];
        const int code = s.send ? MPI_Send_init(data, int(s.bytes), MPI_BYTE, s.peer, s.tag, topology_.comm, request)
                                : MPI_Recv_init(data, int(s.bytes), MPI_BYTE, s.peer, s.tag, topology_.comm, request);
        check(code, s.send ? "MPI_Send_init" : "MPI_Recv_init", rank(), s.peer, s.bytes);
    }

    void do_start(int i) override {
        check(MPI_Start(&requests_[size_t(i)]), "MPI_Start", rank(), slot(i).peer, slot(i).bytes);
    }

    bool do_test(int i, size_t* bytes) override {
        int done = 0;
        MPI_Status status;
        const ChannelState& s = slot(i);
        check(MPI_Test(&requests_[size_t(i)], &done, &status), s.send ? "send" : "receive", rank(), s.peer, s.bytes);
        if (!done) return false;
        if (!s.send) {
            int count = 0;
            MPI_Get_count(&status, MPI_BYTE, &count);
            *bytes = size_t(count);
        }
        return true;
    }

    /// A message may be in flight after an error of a task, at the end of the program, or if RollCall replaces it. A
    /// receive is cancelled unless its message is already arriving. In that case, and for a send, this function waits,
    /// since the memory must stay valid until the transfer is complete. The wait is limited, because a send that no
    /// rank receives might never complete.
    void do_close(int i) override {
        MPI_Request* request = &requests_[size_t(i)];
        if (slot(i).in_flight) {
            if (!slot(i).send) MPI_Cancel(request);
            int done = 0;
            for (const double begin = MPI_Wtime(); !done && MPI_Wtime() < begin + kWithdrawSeconds;)
                MPI_Test(request, &done, MPI_STATUS_IGNORE);
        }
        MPI_Request_free(request);
    }

    /// Stops at a message of more than kShort bytes: they are still in the sender's memory, which it may have freed.
    void discard(int peer, int tag) override {
        std::vector<char> scratch(kShort);
        for (;;) {
            int pending = 0, count = 0;
            MPI_Status status;
            check(MPI_Iprobe(peer, tag, topology_.comm, &pending, &status), "MPI_Iprobe", rank(), peer);
            if (pending) MPI_Get_count(&status, MPI_BYTE, &count);
            if (!pending || count > kShort) return;
            check(MPI_Recv(scratch.data(), count, MPI_BYTE, peer, tag, topology_.comm, MPI_STATUS_IGNORE), "MPI_Recv",
                  rank(), peer);
        }
    }

    Topology topology_;
    int exceptions_;
    std::vector<MPI_Request> requests_; // the index is the slot
};

} // namespace

void end_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) raise(SIGTERM); // the parent ended before prctl(), so the kernel sends nothing
}

int count_sharers(const cpu_set_t& own, std::span<const cpu_set_t> sets) {
    return int(std::count_if(sets.begin(), sets.end(), [&](const cpu_set_t& other) {
        cpu_set_t both;
        CPU_AND(&both, &own, &other);
        return CPU_COUNT(&both) > 0;
    }));
}

std::unique_ptr<Link> open_mpi_link(int& argc, char**& argv) {
    return std::make_unique<MpiLink>(start_mpi(argc, argv));
}

} // namespace rg::par
