package audit

import "time"

// Kind is what an event says happened.
type Kind string

// The kinds of a job's events, and the ledger's own housekeeping kinds.
const (
	Allow               Kind = "allow"
	Deny                Kind = "deny"
	Start               Kind = "start"
	Finish              Kind = "finish"
	Commit              Kind = "commit"
	Rollback            Kind = "rollback"
	Timeout             Kind = "timeout"
	Cancel              Kind = "cancel"
	Error               Kind = "error"
	WorkerTerminated    Kind = "worker_terminated"
	TerminationUnproven Kind = "termination_unproven"
	Recovered           Kind = "recovered"
	LedgerOpened        Kind = "ledger.opened"
	LedgerRestored      Kind = "ledger.restored"
	LedgerPruned        Kind = "ledger.pruned"
	LedgerClosed        Kind = "ledger.closed"
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
	Data      map[string]any // by kind, see docs/audit.md; JSON values only, never argument values
}
