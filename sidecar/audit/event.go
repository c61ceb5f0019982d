package audit

import "time"

// Kind is what an event says happened.
type Kind string

// The kinds of a job's events, and the ledger's own housekeeping kinds.
const (
	Allow               Kind = "allow"                // the call was admitted; data: digest of the arguments; those of an idempotency key and of what it holds for
	Deny                Kind = "deny"                 // the call was refused before anything happened; data: code, reason
	Start               Kind = "start"                // the first process was started; data: pid, group, digest of argv, programs and versions
	Finish              Kind = "finish"               // a read ended; data: verdict
	Commit              Kind = "commit"               // outputs and session state are published: the commit point; data: outputs with digests, generations, digest of the state
	Rollback            Kind = "rollback"             // nothing has changed, or everything was undone; or, as the reason says then, an operator has decided, and the targets are as he left them; data: code, reason
	Timeout             Kind = "timeout"              // the tool's time was over
	Cancel              Kind = "cancel"               // the caller cancelled or went away
	Error               Kind = "error"                // the tool failed, lied or met a limit; data: code, reason
	WorkerTerminated    Kind = "worker_terminated"    // every process of the job is proven dead; data: proof, descendants killed, usage
	TerminationUnproven Kind = "termination_unproven" // death could not be proven: keys, targets and staging are kept
	Recovered           Kind = "recovered"            // a later start found the job and decided it; data: resolution, proof
	LedgerOpened        Kind = "ledger.opened"        // an engine has opened the ledger; data: epoch
	LedgerRestored      Kind = "ledger.restored"      // the ledger is older than the workspace: it was restored
	LedgerPruned        Kind = "ledger.pruned"        // older events were deleted; data: how far, and the hash that the rest is chained to
	LedgerClosed        Kind = "ledger.closed"        // the engine has ended in order
)

// Housekeeping reports whether k is about the ledger itself: outside every job and its legal orders.
func (k Kind) Housekeeping() bool {
	return k == LedgerOpened || k == LedgerRestored || k == LedgerPruned || k == LedgerClosed
}

// Event is one entry of the audit trail before the ledger gives it a sequence number and a hash.
type Event struct {
	Kind      Kind
	Job       string // execution_job_id; empty for ledger.* kinds
	N         int    // position among its job's events, from 1; set by the ledger
	Session   string // session id; may be empty for reads
	Tool      string
	Principal string
	RequestID string
	At        time.Time      // UTC; the zero value lets the ledger stamp it
	Data      map[string]any // by kind, see docs/audit.md; JSON values only, never argument values; not changed once handed over
}

// Kinds returns all kinds, in the order of the documentation.
func Kinds() []Kind {
	return []Kind{
		Allow, Deny, Start, Finish, Commit, Rollback, Timeout, Cancel, Error,
		WorkerTerminated, TerminationUnproven, Recovered, LedgerOpened, LedgerRestored, LedgerPruned, LedgerClosed,
	}
}
