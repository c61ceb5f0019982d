// Package ledger is the durable truth of a workspace: the journals of jobs, the sessions, and the audit trail, in one
// SQLite database. A job's phase, the session's new state and the event commit become durable in one transaction, the
// commit point; what the ledger does not call committed is undone. One goroutine writes, on one connection, whatever
// package batch gathered; readers have a pool of their own, also in other processes.
//
// # Guarantees
//
//   - G2: phase, session and event change together or not at all, also across SIGKILL (TestKillBetween).
//   - G3: an answer is Durable only after COMMIT returned OK; a COMMIT whose fate cannot be known is Unknown, and
//     nothing is written behind it (TestFateTable).
//   - G5: a commit compares the generation it was cloned from; a destroyed session never changes (TestCompareAndSet).
//     The schema itself refuses what the code never does (TestTriggers).
//   - Evidence: [Reader.Verify] names the first event that was edited, dropped, doubled or moved (TestVerify), a session
//     whose row is gone (TestVerifySessions), and what the schema lacks or has besides (TestVerifySchema).
//   - Nothing is committed into files that were removed or replaced meanwhile (TestMoved).
//   - An older ledger that was put back is noticed (TestRestored), and what a crash left in the page cache is made
//     durable before it is believed (TestRedirty).
//
// # Not guaranteed
//
// That the directory is on a local file system: the caller checks (WAL needs memory shared by all openers). That a
// full rewrite of the trail is noticed: anchor [Report].Head elsewhere. That a copy of the live files is whole: operators
// copy with VACUUM INTO, by any client of SQLite, also beside the writer (TestBackupBesideTheWriter).
//
// # Concurrency
//
// All methods may be called at once. Operations return at once with a [Ticket]; reads take a context, and hold no
// transaction while they call back.
//
// # Failure
//
// Open: ErrDamaged, ErrNewer, ErrWorkspace, ErrFresh; nothing was changed, the process should end. An operation:
// ErrFull, ErrPoisoned, ErrClosed or an invalid event at once; else its ticket says Refused (with ErrStale, ErrPhase or
// audit.ErrOrder), Absent or Unknown. A poisoned ledger is read only until a restart.
//
// # Testing
//
// On a real file in a temporary directory. [Options].Fault fails or delays any statement of the writer, before or after
// it was done; it may also kill the process.
//
// # Sources
//
// sqlite.org: wal.html, rescode.html, pragma.html, lang_vacuum.html, howtocorrupt.html; CloudEvents 1.0.
package ledger
