package job

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// sentinels maps what the parts return, the particular before the general.
func sentinels() []struct {
	err  error
	code Code
} {
	return []struct {
		err  error
		code Code
	}{
		{cgroup.ErrUnproven, TerminationUnproven},
		{txn.ErrUnproven, TerminationUnproven},
		{adapters.ErrArgument, InvalidArgument},
		{adapters.ErrConfig, InvalidArgument},
		{adapters.ErrTooOld, ToolNotInstalled},
		{adapters.ErrVersionUnreadable, ToolNotInstalled},
		{adapters.ErrLogCut, OutputLimit},
		{adapters.ErrMissing, OutputInvalid},
		{adapters.ErrNotWhole, OutputInvalid},
		{txn.ErrInvalidPath, InvalidArgument},
		{txn.ErrDocument, InvalidArgument},
		{txn.ErrFull, WorkspaceFull},
		{txn.ErrQuota, OutputLimit},
		{txn.ErrOutput, OutputInvalid},
		{txn.ErrConflict, OutputConflict},
		{txn.ErrQuarantine, PublishFailed},
		{lock.ErrDestroyed, SessionDestroyed},
		{lock.ErrCancelled, CodeCancelled},
		{session.ErrKey, OutputInvalid},
		{session.ErrLimit, OutputInvalid},
		{session.ErrState, OutputInvalid},
		{ledger.ErrStale, SessionDestroyed},
		{ledger.ErrNotFound, SessionNotFound},
		{ledger.ErrPoisoned, AuditUnavailable},
		{ledger.ErrFull, AuditUnavailable},
		{ledger.ErrClosed, AuditUnavailable},
		{unix.ENOSPC, WorkspaceFull},
		{unix.EDQUOT, WorkspaceFull},
	}
}

// codeOf is the code of an error that carries none. What nobody foresaw is INTERNAL.
func codeOf(err error) Code {
	var unavailable *cgroup.UnavailableError
	var start *cgroup.StartError
	var busy *lock.BusyError
	switch {
	case errors.As(err, &unavailable):
		return ContainmentUnavailable
	case errors.As(err, &busy):
		return Busy
	case errors.As(err, &start) && (start.Op == "stat" || start.Op == "exec") && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		return ToolNotInstalled
	}
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return Internal
}

// or gives err a code of its own only where nothing more particular is known of it.
func or(code Code, op string, err error) error {
	if known := asError(err).Code; known != Internal {
		code = known
	}
	return fail(code, op, err)
}
