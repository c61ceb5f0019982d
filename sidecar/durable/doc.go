// Package durable holds the few file operations whose durability or identity matters, behind one seam, [FS], that
// tests can count, fail and crash. Every operation takes an open directory and one name, so that no path is walked twice.
//
// # Guarantees
//
// No lookup follows a link, crosses a mount or leaves the directory it starts in (G6): TestBeneath.
// A workspace has one owner, for as long as its process lives and no longer: TestOwner.
// A volume that says yes and does something else is refused at start (G8): TestProbe.
//
// # Not guaranteed
//
// Policy and retries: an operation is tried once (EINTR, and EAGAIN of openat2, aside). A failed [FS.Sync] is final.
// OpenRoot follows links, as the operator chose that path.
//
// # Concurrency
//
// An FS may be used by many goroutines. Only Barrier starts goroutines, at most 16 in all, and it awaits its own.
//
// # Failure
//
// Errors wrap the errno. After an error of a rename nothing is known: look at both names again.
// Volumes are refused with a [*VolumeError], a second owner with an [*OwnedError].
//
// # Testing
//
// durabletest wraps an FS to count operations, or to fail the n-th before or after it was done.
//
// # Sources
//
// openat2(2), statx(2), rename(2), fsync(2), fcntl(2); Rebello et al., "Can Applications Recover from fsync Failures?",
// USENIX ATC 2020; tracker.ceph.com/issues/54733.
package durable
