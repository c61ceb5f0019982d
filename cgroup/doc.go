// Package cgroup runs one program in a cgroup v2 of its own, under Landlock, and proves when nothing of it is left. The engine
// makes a [Group] for each step of a job, starts the tool in it, and after every end, good or bad, kills the group and
// waits for the [Empty] that it must show to publish or delete anything. The one idea: a process cannot flee its cgroup, so the
// kernel's own count of it is the only proof of death; a signal sent, a leader reaped or a list that is empty are none.
//
//	p, err := cgroup.Open(ctx, cgroup.Options{Workspace: ws})  // in main, after cgroup.Child and cgroup.SecureProcess
//	g, err := p.Create(ctx, job, step, limits)                 // g.Ref() into the journal
//	tool, err := g.Start(ctx, cgroup.Command{...})
//	exit, err := tool.Wait(ctx)                                // ctx carries deadline and cancel
//	killed, err := g.Kill(ctx)                                 // always, also after exit 0
//	empty, err := g.WaitEmpty(undo)                            // under a context that the caller cannot cancel
//	usage, err := g.Usage()
//	g.Remove(empty)
//
// # Guarantees
//
//   - G1, G3: an Empty is minted only from populated 0 (or ENODEV) of the held cgroup.events, of a group that is closed to
//     starts, with no start in flight, after the leader was reaped. Everything else is a [*UnprovenError]: TestProof,
//     TestProofWaitsForStartAndLeader, TestEveryTreeDies, TestKillAgainstStart, TestUnprovenIsSwept.
//   - G6: a tool is born inside its group, writes only below its job's directories, cannot leave the group, read the state or
//     signal us; it has no capability, no terminal, no descriptor but 0, 1, 2 and no variable that was not given:
//     TestOnlyTheJobIsWritable, TestToolCannotLeaveItsGroup, TestWhatAToolSees, TestInheritedDescriptor.
//   - G7: output costs less than 512 KiB of memory whatever is printed, and nothing waits for its end of file: TestFloodAndHeldPipe,
//     TestDrainIsBounded. Every wait has a deadline.
//   - G8: without a writable cgroup v2, cgroup.kill, Landlock ABI 3 and a self-test that ends in a proof, [Open] fails with
//     every reason and its fix: TestDiscover, TestGrants, TestSelfTestIsRefused. A limit that is set is read back: TestDroppedLimitIsAnError.
//   - G9: [Parent.Adopt] kills only the very group of the [Ref], and claims death only where it can see it:
//     TestAdoptKillsAndProves, TestAdoptBelievesOnlyWhatItSees, TestAnotherInodeIsNeverKilled.
//   - A host whose seccomp profile refuses clone3 has all of this by the shim: TestShimPassesTheSameTests.
//
// # Not guaranteed
//
// Landlock does not cover chmod, chown, utime, setxattr or flock of files of the tool's uid, nor, below the ABI named by
// [Doctor], TCP, signals and sockets. A service that starts processes for a tool (docker, cron, ssh) is out of sight. RLIMIT_FSIZE
// and oom_score_adj come a moment after the exec. Start's success does not mean that the tool ran. What an
// outside process was handed, an open descriptor, say, outlives the proof. A group's leader in kernel state D keeps one
// goroutine and one thread until it dies, also after Close.
//
// # Concurrency
//
// All methods may be called by several goroutines at once, but Usage not after Remove, and Close after everything else. No lock
// is held while anything blocks. Goroutines: one waits for each leader, one empties its pipe (both end with the group), one
// per sweep and per removal, and the reaper; [Parent.Close] ends the last three. Only one Parent of a process may have a
// reaper, and such a process must not wait for children in other ways (os/exec): see Options.NoReaper.
//
// # Failure
//
// Before the start: [*UnavailableError] of Open, [ErrLimits] and fs.ErrExist of Create: nothing exists. [*StartError]: nothing runs,
// or will only for as long as it takes to Kill and WaitEmpty, which follow also here. [*UnprovenError] (wraps [ErrUnproven]): somebody
// may live and write; keep locks, targets and staging, and give the group to [Parent.Sweep].
//
// # Testing
//
// Tests without a kernel take proofs from cgroup/cgrouptest, tests with one begin with its Need functions and end with its
// Invariant; they set Options.NoReaper, and call [Child] in TestMain, because the self-test runs the test binary as its probe.
// Here, the seams are Options.off, which switches each protection off for its control, and the kernel interface of prove.go.
//
// # Sources
//
// Linux Documentation/admin-guide/cgroup-v2.rst, Documentation/userspace-api/landlock.rst; clone(2), pidfd_send_signal(2), prctl(2),
// capabilities(7), cgroups(7), proc_pid_mountinfo(5); commit b69bb476dee9 (cgroup.kill and fork).
package cgroup
