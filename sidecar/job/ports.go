package job

import (
	"context"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// Groups is where groups are made and tools started: the local cgroup.Parent, or an agent beside another container.
type Groups interface {
	Create(ctx context.Context, job string, step int, l cgroup.Limits) (Group, error)
	Sweep(g Group, proved func(cgroup.Empty))
	Capabilities() cgroup.Capabilities
}

// Group is the cgroup of one step. Its methods are those of cgroup.Group.
type Group interface {
	Ref() cgroup.Ref
	Start(ctx context.Context, c cgroup.Command) (Process, error)
	Kill(ctx context.Context) (cgroup.Descendants, error)
	Terminate(ctx context.Context, grace time.Duration) (cgroup.Empty, error)
	WaitEmpty(ctx context.Context) (cgroup.Empty, error)
	Usage() (cgroup.Usage, error)
	Remove(e cgroup.Empty)
}

// Process is a started leader. Its methods are those of cgroup.Process.
type Process interface {
	PID() int
	Wait(ctx context.Context) (cgroup.Exit, error)
	Output() cgroup.Output
}

// Metrics is told of every call once, at its terminal answer. It cannot fail.
type Metrics interface{ Finished(Result, Times) }

// Options of a Runner. The zero value of each field works.
type Options struct {
	Path          string                     // PATH of tools; empty: /usr/local/bin:/usr/bin:/bin
	Readable      []string                   // absolute directories that tools may read beside the system's (PDKs)
	Hidden        []string                   // absolute paths that no tool may open: the state directory
	PassEnv       []string                   // name=value pairs of our environment that a tool gets if it asks for the name
	BootID        string                     // of the running kernel
	ToolUID       int                        // of tools; -1: ours
	ToolGID       int                        // of tools; -1: ours
	Limits        map[string]adapters.Limits // by tool: fields above zero replace the tool's own
	QueueTimeout  time.Duration              // for the keys; 0: 60 s
	KillTimeout   time.Duration              // from the kill to the proof; 0: 10 s
	Grace         time.Duration              // from SIGTERM to the kill of a cancelled or late tool; 0: 2 s
	LedgerTimeout time.Duration              // for the ledger's answer to a commit; 0: 30 s
	Metrics       Metrics                    // nil: none
	Now           func() time.Time           // nil: time.Now
}

// Request is one call, decoded and authorised.
type Request struct {
	Tool      *adapters.Tool
	Args      adapters.Args
	Digest    string                  // SHA-256 of the arguments, hex: what the audit trail holds of them
	Key       Key                     // of a mutating call; zero: the call runs whatever ran before
	Session   string                  // id, or DefaultSession; empty: the default one if the call mutates, else none
	Principal string                  // who calls
	Script    bool                    // the principal may hand over code: tools of trust script run
	RequestID string                  // the caller's name for the call; may be empty
	Timeout   time.Duration           // of the tool, from the start of its first group; 0: the tool's default
	Progress  func(adapters.Progress) // at most four a second; may be nil; must not block
	Refused   error                   // if set, the caller has refused the call: it is recorded and answered, and does nothing
}

// Who asks for jobs and sessions: for its own, or for everybody's.
type Who struct {
	Name string // of the principal
	All  bool   // may ask for, and end, what is anybody's
}

func (w Who) sees(owner string) bool { return w.All || w.Name == owner }

// query is who's part of a question to the ledger, where no name means everybody.
func (w Who) query() string {
	if w.All {
		return ""
	}
	return w.Name
}

// DefaultSession names the caller's own default session.
const DefaultSession = "default"
