package outcome

import "github.com/eda-sidecar/eda-sidecar/internal/msync"

// Cause is why a job was aborted.
type Cause uint8

// The causes. None is the zero value: nobody aborted.
const (
	None      Cause = iota
	Cancelled       // the caller asked, or went away
	Deadline        // the tool's time was over
	Destroyed       // its session is being destroyed
	Shutdown        // the engine is stopping
	Quota           // its staging grew beyond its limit
)

// End is how a job ended, or why it has not ended yet.
type End uint8

// The ends. The last three keep the job's keys: something is not known or not done yet.
const (
	Committed  End = iota + 1
	RolledBack     // nothing has changed
	Read           // a read: there was nothing to change
	Unproven       // death is not proven
	InDoubt        // the durability of the commit record is not known
	Undecided      // the undo waits for room on the volume, or its durability is not known
)

// final reports whether nothing can follow e in this process.
func (e End) final() bool { return e == Committed || e == RolledBack || e == Read }

// The word's states; an aborted one carries its cause in the bits above.
const (
	running uint32 = iota
	publishing
	aborted
	closed // the end was recorded

	stateBits = 8
	stateMask = 1<<stateBits - 1
)

// Cell is one job's outcome. The zero value is a running job without a kill handle.
type Cell struct {
	word    msync.Uint32 // state | cause << stateBits; leaves running by one compare-and-swap
	callers msync.Uint32 // who are not gone, beside one; or nobody

	mu msync.Mutex
	// guarded by mu
	kill     func()
	end      End
	release  func()
	released bool
}

// Hold gives the cell what releases the job's keys, before the job can end. It is called at most once by the cell.
func (c *Cell) Hold(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release = release
}

// Register installs kill, which an abort calls once, outside all locks. It returns false if the job was aborted
// before: then kill is not installed and the caller must act on the abort itself.
func (c *Cell) Register(kill func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !skipCancelGuard && c.word.Load()&stateMask == aborted {
		return false
	}
	c.kill = kill
	return true
}

// Unregister takes the kill handle back, after the step that it could kill has been proven dead.
func (c *Cell) Unregister() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill = nil
}

// Abort decides that the job ends without a commit, because of cause, and kills what runs. It returns false if the
// outcome was decided before: by another abort, by publication, or by the end.
func (c *Cell) Abort(cause Cause) bool {
	var kill func()
	if handleOutsideLock {
		kill = c.kill
	}
	if checkThenActAbort {
		if c.word.Load() == publishing {
			return false
		}
		c.word.Store(aborted | uint32(cause)<<stateBits)
	} else if !c.word.CompareAndSwap(running, aborted|uint32(cause)<<stateBits) {
		return false
	}
	if !handleOutsideLock {
		c.mu.Lock()
		kill, c.kill = c.kill, nil
		c.mu.Unlock()
	}
	if kill != nil {
		kill()
	}
	return true
}

// Aborted returns the cause of the abort that won, or None.
func (c *Cell) Aborted() Cause {
	if w := c.word.Load(); w&stateMask == aborted {
		return Cause(w >> stateBits)
	}
	return None
}

// BeginPublish decides that the job will publish. It returns false if an abort won. From then on the job ends in a
// commit, an undo or in doubt, whoever asks for what.
func (c *Cell) BeginPublish() bool {
	if skipFinalCheck || checkThenActPublish && c.word.Load() == running {
		c.word.Store(publishing)
		return true
	}
	return c.word.CompareAndSwap(running, publishing)
}

// Finish records the end and, if it is final, releases the job's keys, once. An end that is not final keeps them, and
// may be followed by a final one when more is known. It returns false if a final end was recorded before.
func (c *Cell) Finish(end End) bool {
	if !abortAfterEnd {
		c.word.CompareAndSwap(running, closed)
	}
	c.mu.Lock()
	if c.end.final() && !releaseTwice {
		c.mu.Unlock()
		return false
	}
	later := c.end != 0
	c.end = end
	var release func()
	if (end.final() || releaseUnproven) && (!c.released || releaseTwice) && !(skipReleaseOnFinal && later) {
		release, c.released = c.release, true
	}
	c.mu.Unlock()
	if release != nil {
		release()
	}
	return true
}

// End returns the recorded end, or 0.
func (c *Cell) End() End {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// Join adds a caller. It returns false if all are gone: the job ends.
func (c *Cell) Join() bool {
	for {
		n := c.callers.Load()
		if n == nobody && !joinTheAbandoned {
			return false
		}
		if c.callers.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave takes a caller away, with the last of whom the job is aborted.
func (c *Cell) leave(cause Cause) bool {
	for {
		n := c.callers.Load()
		left := n - 1 // of 0: nobody
		if abandonWithFirst {
			left = nobody
		}
		if c.callers.CompareAndSwap(n, left) {
			return left == nobody && c.Abort(cause)
		}
	}
}

const nobody = ^uint32(0)

// Caller is one of those who are told of a job's end: the one that started it, or one that joined. The zero value waits.
type Caller struct {
	word msync.Uint32 // attached, detached or abandoned
}

const (
	attached uint32 = iota
	detached
	abandoned
)

// Detach hands the job over to the caller: it now outlives the call. It returns false if the caller was gone first.
func (c *Caller) Detach() bool {
	if detachWithoutCAS {
		c.word.Store(detached)
		return true
	}
	return c.word.CompareAndSwap(attached, detached)
}

// Abandon says that the caller is gone, unless the job was handed over to it before: the job is aborted with its last
// caller. It reports whether this call aborted it.
func (c *Caller) Abandon(job *Cell, cause Cause) bool {
	return c.word.CompareAndSwap(attached, abandoned) && job.leave(cause)
}

// Disown is Abandon also after the job was handed over.
func (c *Caller) Disown(job *Cell, cause Cause) bool {
	for {
		w := c.word.Load()
		if w == abandoned {
			return false
		}
		if c.word.CompareAndSwap(w, abandoned) {
			return job.leave(cause)
		}
	}
}
