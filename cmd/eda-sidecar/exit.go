package main

import (
	"errors"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// Exit codes: sysexits.h where it has a name for the case, the shell's for time-outs (timeout(1)) and signals.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitNoSupport = 69  // EX_UNAVAILABLE: no containment here
	exitInternal  = 70  // EX_SOFTWARE: something is not known
	exitRetry     = 75  // EX_TEMPFAIL
	exitTimeout   = 124 // as timeout(1)
	exitCancelled = 130 // as a shell after SIGINT
)

// exitOf maps a result's code to the exit code of the command.
func exitOf(c job.Code) int {
	switch c {
	case job.OK:
		return exitOK
	case job.InvalidArgument, job.Denied, job.ToolNotInstalled, job.SessionNotFound, job.SessionDestroyed:
		return exitUsage
	case job.ContainmentUnavailable:
		return exitNoSupport
	case job.TerminationUnproven, job.CommitInDoubt, job.Internal:
		return exitInternal
	case job.Busy, job.ShuttingDown, job.WorkspaceFull, job.AuditUnavailable:
		return exitRetry
	case job.ToolTimeout:
		return exitTimeout
	case job.CodeCancelled:
		return exitCancelled
	case job.ToolFailed, job.OutputInvalid, job.OutputLimit, job.OutOfMemory, job.ProcessLimit, job.OutputConflict, job.PublishFailed:
		return exitFailed
	}
	return exitInternal
}

// silentError ends a command with a code when its result has been printed already.
type silentError struct{ code int }

// Error is never printed.
func (e *silentError) Error() string { return "the result was printed" }

// exitOfError maps what a command returned to its exit code.
func exitOfError(err error) int {
	var printed *silentError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &printed):
		return printed.code
	}
	return exitOf(asJobError(err).Code)
}
