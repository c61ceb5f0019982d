// Package txn publishes the outputs of one job together, or not at all. A tool writes only in its job directory; once
// its group is proven empty, each staged output changes places with its target by one atomic rename, and what was
// displaced is the backup. Live undo and recovery call one pure function, [Plan], which decides by identity.
//
// # Guarantees
//
// Targets are all old or all new, also after a crash (G2): TestFaults, TestPlanTable.
// Nobody else's bytes are overwritten or deleted (G2): TestForeignEdits.
// Nothing is published or deleted without a proof for every group (G1): TestWitness.
// No path leaves the workspace by "..", link or mount (G6): TestAdmitRefuses, FuzzPath.
// A walk is bounded in entries and depth (G7): TestInspectRefuses, TestSample.
//
// # Not guaranteed
//
// Several single targets change one after another: a foreign reader may see a mix for microseconds. A tree changes at once.
// Mode, owner and times of a target are not bytes: a change of them is not a conflict, but for a modification time.
//
// # Concurrency
//
// A [Workspace] may be used by many goroutines, for different jobs; an [Admission] and a [Txn] by one. No goroutine is
// started but by durable.FS.Barrier. Whoever calls holds the locks of all targets from Refresh to the final row.
//
// # Failure
//
// Until Exchange an error leaves every target untouched: Discard. From Exchange on: Undo, whatever the error; if Undo
// fails nothing is lost, the row stays open and Undo may be called again.
//
// # Testing
//
// Wrap the durable.FS given to [Open]; proofs come from cgroup/cgrouptest.
//
// # Sources
//
// rename(2), fsync(2), fcntl(2) (leases), openat2(2), path_resolution(7), acl(5).
package txn
