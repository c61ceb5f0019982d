package txn

import "github.com/eda-sidecar/eda-sidecar/cgroup"

// Phase is how far a job's changes to files have come, as the ledger knows it.
type Phase string

// The phases, in order. CommittingState is in memory and in recovery.json only: in the ledger it and Committed are one transaction.
const (
	WorkerRunning     Phase = "worker_running"
	PublishingOutputs Phase = "publishing_outputs"
	CommittingState   Phase = "committing_state"
	Committed         Phase = "committed"
	RolledBack        Phase = "rolled_back"
)

// Kind says whether an output is one file or a directory published whole.
type Kind string

// The kinds of output.
const (
	File Kind = "file"
	Tree Kind = "tree"
)

// Method is how an output changes places with its target.
type Method string

// The methods: Exchange where the target existed, NoReplace where it did not (renameat2(2)).
const (
	Exchange  Method = "exchange"
	NoReplace Method = "noreplace"
)

// Journal is what a job intends and has done to files, with their identities: the ledger's jobs.doc.
// Paths are relative to the workspace, cleaned, with forward slashes, and untrusted when read back.
type Journal struct {
	Version     int          `json:"version"` // 1
	Job         string       `json:"job"`
	Session     string       `json:"session,omitempty"`
	Tool        string       `json:"tool"`
	Principal   string       `json:"principal"`
	RequestID   string       `json:"request_id,omitempty"`
	LandlockABI int          `json:"landlock_abi"` // in force for every process of the job
	BootID      string       `json:"boot_id"`
	Epoch       int64        `json:"epoch"`  // of the ledger, when the job began
	Groups      []cgroup.Ref `json:"groups"` // one a step
	BaseGen     int64        `json:"base_gen"`
	NewGen      int64        `json:"new_gen"`
	CreatedDirs []string     `json:"created_dirs,omitempty"` // parents made for new targets, outermost first
	Outputs     []Output     `json:"outputs"`
}

// Output is one declared output in the journal.
type Output struct {
	Index  int     `json:"index"`
	Name   string  `json:"name"` // parameter name, such as netlist
	Kind   Kind    `json:"kind"`
	Target string  `json:"target"` // workspace-relative
	Parent DirID   `json:"parent"` // of the target; zero while the parent has yet to be created
	Staged string  `json:"staged"` // jobs/<job>/o<i>: staged before the exchange, backup after it
	Method Method  `json:"method"`
	Old    FileID  `json:"old"`           // the pre-image; Exists false: a new name
	New    *FileID `json:"new,omitempty"` // set from publishing_outputs on
}

// DirID identifies a directory. Btime is in nanoseconds since the epoch.
type DirID struct {
	Ino   uint64 `json:"ino"`
	Btime int64  `json:"btime"`
}

// FileID identifies a file or a tree and its content. Times are nanoseconds since the epoch, sizes bytes.
type FileID struct {
	Exists  bool   `json:"exists"`
	Type    string `json:"type,omitempty"` // file | dir
	Ino     uint64 `json:"ino,omitempty"`
	Btime   int64  `json:"btime,omitempty"`
	Size    int64  `json:"size,omitempty"`
	MtimeNS int64  `json:"mtime_ns,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
	UID     uint32 `json:"uid,omitempty"`
	GID     uint32 `json:"gid,omitempty"`
	Nlink   uint64 `json:"nlink,omitempty"`
	SHA256  string `json:"sha256,omitempty"`   // hex; new files only
	TreeSum string `json:"tree_sum,omitempty"` // hex digest of a tree's manifest
}
