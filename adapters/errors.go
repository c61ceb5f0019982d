package adapters

import (
	"errors"
	"fmt"
	"strings"
)

// Before anything starts: decoding, planning, configuration.
var (
	// ErrArgument is wrapped by every mistake in a call's arguments; the code is INVALID_ARGUMENT.
	ErrArgument = errors.New("invalid argument")
	// ErrConfig is wrapped by every mistake in a declared tool.
	ErrConfig = errors.New("invalid tool")
)

// About a program that was asked for its version; the code is TOOL_NOT_INSTALLED.
var (
	// ErrVersionUnreadable says that the program answered, and not with a version.
	ErrVersionUnreadable = errors.New("version not readable")
	// ErrTooOld says that the program is older than the oldest supported version.
	ErrTooOld = errors.New("too old")
)

// About outputs in staging; the code is OUTPUT_INVALID, or OUTPUT_LIMIT for ErrLogCut.
var (
	// ErrMissing says that the tool did not write a declared output or an intermediate product.
	ErrMissing = errors.New("not written")
	// ErrNotWhole says that a file is there and not a whole file of its kind.
	ErrNotWhole = errors.New("not whole")
	// ErrLogCut says that the verdict is counted from the log and the log was cut: its unread tail may hold an error.
	ErrLogCut = errors.New("log was cut, and the verdict is counted from it")
)

// ArgumentError is one mistake in one argument. It unwraps to ErrArgument.
type ArgumentError struct {
	Arg  string // the parameter's name
	Rule string // what was broken, and what to do; no full stop
}

// Error says argument and rule.
func (e *ArgumentError) Error() string { return fmt.Sprintf("argument %q: %s", e.Arg, e.Rule) }

// Unwrap returns ErrArgument.
func (e *ArgumentError) Unwrap() error { return ErrArgument }

func badArg(name, format string, args ...any) error {
	return &ArgumentError{Arg: name, Rule: fmt.Sprintf(format, args...)}
}

// notWhole is an ErrNotWhole with its reason.
func notWhole(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotWhole, fmt.Sprintf(format, args...))
}

// Fault is one thing wrong with one output in staging. It unwraps to Err.
type Fault struct {
	Output string // parameter name of the output, or the path of a product below work/
	Err    error
}

// Error names the output and what is wrong with it.
func (f Fault) Error() string { return fmt.Sprintf("output %q: %v", f.Output, f.Err) }

// Unwrap returns Err.
func (f Fault) Unwrap() error { return f.Err }

// nearest returns the known name that word seems to mean, as a hint, or all of them.
func nearest(word string, known []string) string {
	for _, k := range known {
		if strings.Contains(k, word) || strings.Contains(word, k) {
			return fmt.Sprintf("did you mean %q", k)
		}
	}
	return "known: " + strings.Join(known, ", ")
}
