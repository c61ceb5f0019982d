package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// OwnerFile is the name of the owner lock in .eda-sidecar.
const OwnerFile = "owner.lock"

// ownerSize is one sector, so that a power loss leaves the old record or the new one; the rest is blanks.
const ownerSize = 512

// Owner is the content of the owner lock.
type Owner struct {
	WorkspaceID string `json:"workspace_id"`
	Instance    string `json:"instance"` // of the process that holds the lock, or held it last
	PID         int    `json:"pid"`      // in that process's own pid namespace
	Epoch       int64  `json:"epoch"`    // of the ledger; an older ledger was restored
	BootID      string `json:"boot_id"`
	Groups      string `json:"groups,omitempty"`  // absolute cgroup directory of the last recovered opening's groups
	Serving     string `json:"serving,omitempty"` // URL of a server, without a path
}

// Lock is the held owner lock. The kernel frees it when the process ends, however it ends.
type Lock struct {
	// Previous is what the last owner wrote; zero in a new workspace.
	Previous Owner

	fs FS
	h  Handle
}

// Own takes the owner lock in dir for the life of the process; an [*OwnedError] names the live owner. A lock is never
// taken over by age: whoever holds it is alive. The content stays the last owner's until [Lock.Write].
func Own(fs FS, dir Handle) (*Lock, error) {
	at := Name{dir, OwnerFile}
	if err := Mend(fs, at, 0o600); err != nil {
		return nil, fmt.Errorf("own workspace: %w", err)
	}
	h, err := fs.Lock("durable.owner.lock", at)
	if errors.Is(err, ErrLocked) {
		return nil, &OwnedError{Owner: liveOwner(fs, at)}
	}
	if err != nil {
		return nil, fmt.Errorf("own workspace: %w", err)
	}
	o, err := readOwner(fs, h)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("own workspace: %w", err), h.Close())
	}
	return &Lock{Previous: o, fs: fs, h: h}, nil
}

// liveOwner reads who holds the lock; zero if that cannot be read, as it only decorates an error.
func liveOwner(fs FS, at Name) Owner {
	h, err := fs.OpenFile("durable.owner.peek", at)
	if err != nil {
		return Owner{}
	}
	defer func() { _ = h.Close() }() // opened for reading
	o, err := readOwner(fs, h)
	if err != nil {
		return Owner{}
	}
	return o
}

func readOwner(fs FS, h Handle) (Owner, error) {
	buf := make([]byte, ownerSize)
	n, err := fs.ReadAt("durable.owner.read", h, buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Owner{}, err
	}
	var o Owner
	if n == 0 {
		return o, nil
	}
	if err := json.Unmarshal(buf[:n], &o); err != nil {
		return Owner{}, fmt.Errorf("read %s: %w: %w", OwnerFile, ErrOwner, err)
	}
	return o, nil
}

// Write makes o the durable content of the lock file, in place: the lock belongs to the inode.
func (l *Lock) Write(o Owner) error {
	b, err := json.Marshal(o)
	if err != nil || len(b) > ownerSize {
		return fmt.Errorf("write %s: record of %d bytes: %w", OwnerFile, len(b), errors.Join(err, io.ErrShortWrite))
	}
	b = append(b, bytes.Repeat([]byte(" "), ownerSize-len(b))...)
	if err = l.fs.WriteAt("durable.owner.write", l.h, b, 0); err == nil {
		err = l.fs.Sync("durable.owner.sync", l.h)
	}
	return wrap("write", OwnerFile, err)
}

// Release gives the lock up. Only an orderly end and tests need it.
func (l *Lock) Release() error { return l.h.Close() }
