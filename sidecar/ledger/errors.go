package ledger

import (
	"errors"

	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
)

// Of Open, Look and OpenReader. Nothing was changed.
var (
	// ErrDamaged says that the file is not the database that was written: the chain, quick_check or SQLite object.
	ErrDamaged = errors.New("the ledger is damaged")
	// ErrNewer says that a newer program has written the ledger.
	ErrNewer = errors.New("the ledger was written by a newer version")
	// ErrWorkspace says that the ledger belongs to another workspace.
	ErrWorkspace = errors.New("the ledger belongs to another workspace")
	// ErrEmpty says that nothing was recorded yet: there is no ledger, or one that a crash left before its first event.
	ErrEmpty = errors.New("nothing is recorded yet")
	// ErrAccess says that SQLite may not read the file, or not write beside it, which it must also to read.
	ErrAccess = errors.New("the ledger needs a directory that may be written, also to be read")
	// ErrFresh says that there is no ledger although the workspace holds jobs of one.
	ErrFresh = errors.New("the ledger is missing although the workspace was used")
)

// Of operations: at once from the call, or from a ticket's Err.
var (
	// ErrStale says that the session changed, was destroyed or exists already: nothing of the operation was done.
	ErrStale = errors.New("the session changed meanwhile")
	// ErrPhase says that the job's row is missing or not in the phase from which the operation leads on.
	ErrPhase = errors.New("the job is not in that phase")
	// ErrFenced says that another process has opened the ledger since.
	ErrFenced = errors.New("another process has opened the ledger")
	// ErrNotFound says that there is no such row.
	ErrNotFound = errors.New("not in the ledger")

	ErrFull     = batch.ErrFull     // too much waits already
	ErrPoisoned = batch.ErrPoisoned // only a restart clears it
	ErrClosed   = batch.ErrClosed   // after Close
	ErrRefused  = batch.ErrRefused  // a ticket's: this operation alone was not done
)
