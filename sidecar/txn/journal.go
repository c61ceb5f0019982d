package txn

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// Phase is how far a job's changes to files have come, as the ledger knows it.
type Phase string

// The phases, in order. CommittingState is in memory and in recovery.json only: in the ledger it and Committed are one transaction.
const (
	WorkerRunning     Phase = "worker_running"     // the tool may run; no target was touched
	PublishingOutputs Phase = "publishing_outputs" // staged outputs are durable; targets may be new
	CommittingState   Phase = "committing_state"   // in memory and in recovery.json only: waiting for the commit point
	Committed         Phase = "committed"          // final: outputs and session state are published
	RolledBack        Phase = "rolled_back"        // final: every target is as before
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
	Version     int          `json:"version"`                // 1
	Job         string       `json:"job"`                    // job id, and the name of its directory in jobs/
	Session     string       `json:"session,omitempty"`      // id of the session that is locked
	Tool        string       `json:"tool"`                   // what runs
	Principal   string       `json:"principal"`              // who called
	RequestID   string       `json:"request_id,omitempty"`   // the caller's own name for the call
	LandlockABI int          `json:"landlock_abi"`           // in force for every process of the job
	BootID      string       `json:"boot_id"`                // of the kernel that it ran under
	Epoch       int64        `json:"epoch"`                  // of the ledger, when the job began
	Groups      []cgroup.Ref `json:"groups"`                 // one a step
	BaseGen     int64        `json:"base_gen"`               // generation of the session that was cloned
	NewGen      int64        `json:"new_gen"`                // generation that the commit makes
	CreatedDirs []CreatedDir `json:"created_dirs,omitempty"` // parents made for new targets, outermost first
	Outputs     []Output     `json:"outputs"`                // one a target
}

// Output is one declared output in the journal.
type Output struct {
	Index  int     `json:"index"`         // of its slot
	Name   string  `json:"name"`          // parameter name, such as netlist
	Kind   Kind    `json:"kind"`          // file or tree
	Target string  `json:"target"`        // workspace-relative
	Parent DirID   `json:"parent"`        // of the target; zero while the parent has yet to be created
	Staged string  `json:"staged"`        // jobs/<job>/o<i>: staged before the exchange, backup after it
	Method Method  `json:"method"`        // exchange or noreplace
	Old    FileID  `json:"old"`           // the pre-image
	New    *FileID `json:"new,omitempty"` // set from publishing_outputs on
}

// CreatedDir is a directory that is made for new targets. It is made in the job's directory as d<i>, so that its identity is
// known before it has its place. The identity is zero until publishing_outputs, or if no output needs the directory.
type CreatedDir struct {
	Path string `json:"path"` // workspace-relative
	DirID
}

// DirID identifies a directory. Btime is in nanoseconds since the epoch.
type DirID struct {
	Ino   uint64 `json:"ino"`
	Btime int64  `json:"btime"`
}

// FileID identifies a file or a tree and its content. Times are nanoseconds since the epoch, sizes bytes.
type FileID struct {
	Exists  bool   `json:"exists"`             // false: no name there
	Type    string `json:"type,omitempty"`     // file | dir
	Ino     uint64 `json:"ino,omitempty"`      // inode
	Btime   int64  `json:"btime,omitempty"`    // birth, nanoseconds since the epoch
	Size    int64  `json:"size,omitempty"`     // bytes
	MtimeNS int64  `json:"mtime_ns,omitempty"` // modification, nanoseconds since the epoch
	Mode    uint32 `json:"mode,omitempty"`     // permission bits
	UID     uint32 `json:"uid,omitempty"`      // owner
	GID     uint32 `json:"gid,omitempty"`      // group
	Nlink   uint64 `json:"nlink,omitempty"`    // names of the inode
	SHA256  string `json:"sha256,omitempty"`   // hex; new files only
	TreeSum string `json:"tree_sum,omitempty"` // hex digest of a tree's manifest
}

const (
	documentVersion = 1
	documentMax     = 256 << 10 // bytes
	maxTargets      = 64
)

// Encode returns j as JSON, at most 256 KiB. ErrDocument if it is larger or would be refused by DecodeJournal.
func (j *Journal) Encode() ([]byte, error) {
	if why := j.check(); why != "" {
		return nil, fmt.Errorf("encode journal %q: %s: %w", j.Job, why, ErrDocument)
	}
	b, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encode journal %q: %w", j.Job, because(ErrDocument, err))
	}
	if len(b) > documentMax {
		return nil, fmt.Errorf("encode journal %q: %d bytes: %w", j.Job, len(b), ErrDocument)
	}
	return b, nil
}

// DecodeJournal reads what Encode wrote and trusts nothing: bytes that Encode would not have written, such as unknown fields,
// duplicate keys and trailing ones, another version, and paths that leave their place are ErrDocument.
func DecodeJournal(b []byte) (*Journal, error) {
	if len(b) > documentMax {
		return nil, fmt.Errorf("decode journal: %d bytes: %w", len(b), ErrDocument)
	}
	var j Journal
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, fmt.Errorf("decode journal: %w", because(ErrDocument, err))
	}
	again, err := j.Encode()
	if err == nil && !bytes.Equal(b, again) {
		err = fmt.Errorf("somebody else wrote it: %w", ErrDocument)
	}
	if err != nil {
		return nil, fmt.Errorf("decode journal: %w", err)
	}
	return &j, nil
}

// check says why j cannot be a journal; empty if it can.
func (j *Journal) check() string {
	if j.Version != documentVersion {
		return fmt.Sprintf("version %d", j.Version)
	}
	if !plainJob(j.Job) {
		return "job id is not plain"
	}
	if len(j.Outputs) > maxTargets {
		return fmt.Sprintf("%d outputs", len(j.Outputs))
	}
	made := map[string]bool{}
	for _, dir := range j.CreatedDirs {
		if _, why := parsePath(dir.Path); why != "" {
			return fmt.Sprintf("created directory %q %s", dir.Path, why)
		}
		made[dir.Path] = true
	}
	for i, o := range j.Outputs {
		if why := o.check(j.Job, i); why != "" {
			return fmt.Sprintf("output %d: %s", i, why)
		}
		p, _ := parsePath(o.Target) // its reason is empty: Output.check has seen it
		parent, _ := p.split()
		if o.New != nil && o.Parent == (DirID{}) && !made[parent.String()] {
			return fmt.Sprintf("output %d: parent %q has no identity and is not to be created", i, parent)
		}
		for _, other := range j.Outputs[:i] {
			if within(o.Target, other.Target) || within(other.Target, o.Target) {
				return fmt.Sprintf("targets %q and %q overlap", other.Target, o.Target)
			}
		}
	}
	return ""
}

func (o *Output) check(job string, i int) string {
	if o.Index != i {
		return fmt.Sprintf("index %d", o.Index)
	}
	if o.Staged != staged(job, i) {
		return fmt.Sprintf("staged %q is not this job's", o.Staged)
	}
	if _, why := parsePath(o.Target); why != "" {
		return fmt.Sprintf("target %q %s", o.Target, why)
	}
	switch {
	case o.Kind != File && o.Kind != Tree:
		return fmt.Sprintf("kind %q", o.Kind)
	case o.Method != Exchange && o.Method != NoReplace:
		return fmt.Sprintf("method %q", o.Method)
	case (o.Method == Exchange) != o.Old.Exists:
		return fmt.Sprintf("method %s with old.exists %v", o.Method, o.Old.Exists)
	case o.Old.Exists && o.Parent == (DirID{}):
		return "old exists in a parent without identity"
	case o.New != nil && !o.New.Exists:
		return "new does not exist"
	}
	return ""
}

// staged is where output i of job lies before the exchange, relative to .eda-sidecar, and its backup after it.
func staged(job string, i int) string { return fmt.Sprintf("jobs/%s/o%d", job, i) }
