package batch

import "errors"

// Of Put: at once, and nothing was done.
var (
	// ErrFull says that 4,096 operations or 16 MiB wait already.
	ErrFull = errors.New("the ledger's queue is full")
	// ErrPoisoned says that the ledger cannot know what it holds; only a restart clears it.
	ErrPoisoned = errors.New("the ledger is poisoned")
	// ErrClosed says that the ledger was closed.
	ErrClosed = errors.New("the ledger is closed")
)

// Of a Store: what its errors wrap. Any other error poisons, and one from Commit leaves the round Unknown.
var (
	// ErrRefused says that this operation alone was undone.
	ErrRefused = errors.New("refused by the ledger")
	// ErrAbsent says that nothing of the transaction is in the ledger, and that the next one may be tried.
	ErrAbsent = errors.New("not in the ledger")
	// ErrMoved, beside ErrAbsent, says that no next one may be tried: what is written is no longer where it was opened.
	ErrMoved = errors.New("the ledger is not where it was opened")
)
