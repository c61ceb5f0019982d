package cgroup

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	keepBytes     = 64 << 10 // head and tail in memory, each
	defaultLogCap = 64 << 20
	lineMax       = 4 << 10
	lineEvery     = 250 * time.Millisecond
	drainTime     = 250 * time.Millisecond // after the proof, for what the pipe still holds
	drainBytes    = 128 << 10              // two pipe sizes
)

// Output is what a tool printed, stdout and stderr together.
type Output struct {
	Head      []byte // first 64 KiB
	Tail      []byte // last 64 KiB of what is not in Head
	Bytes     int64  // printed in all
	Truncated bool   // the log (without one: Head and Tail) has less than Bytes: cap, or a disk error
}

// output empties the pipe of one tool. It never waits for the end of file: a daemon may hold the pipe for ever.
type output struct {
	read *os.File
	c    Command
	done chan struct{} // closed when copy has returned

	mu        sync.Mutex
	head      []byte // guarded by mu
	tail      []byte // guarded by mu: ring of keepBytes
	total     int64  // guarded by mu
	logged    int64  // guarded by mu
	truncated bool   // guarded by mu
	budget    int64  // guarded by mu: bytes that may still be read; < 0 = any

	partial []byte    // copy alone: the line that is not whole yet
	skip    bool      // copy alone: that line is too long
	lastAt  time.Time // copy alone: of the last line given to c.Line
}

// newOutput makes the pipe. Only the reading end is non-blocking: the other end's flags are the tool's.
func newOutput(c Command) (*output, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	write := os.NewFile(uintptr(fds[1]), "stdout")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		closeFile(os.NewFile(uintptr(fds[0]), "stdout"))
		closeFile(write)
		return nil, nil, err
	}
	if c.LogCap == 0 {
		c.LogCap = defaultLogCap
	}
	return &output{read: os.NewFile(uintptr(fds[0]), "stdout"), c: c, done: make(chan struct{}), budget: -1}, write, nil
}

// copy reads to the end of file or of the budget, also when the log is full or its disk is: a full pipe looks like a hang.
func (o *output) copy() {
	defer close(o.done)
	defer closeFile(o.read)
	buf := make([]byte, 32<<10)
	for {
		n, err := o.read.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) { // of finish: what is there is read all the same, without waiting
			n, err = o.readNow(buf)
		}
		if !o.take(buf[:n]) || err != nil {
			return
		}
		if o.c.Line != nil {
			o.lines(buf[:n], time.Now())
		}
	}
}

// readNow reads what the pipe holds; nothing is EAGAIN.
func (o *output) readNow(buf []byte) (n int, err error) {
	conn, err := o.read.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) })
	if ctlErr == nil && n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), errors.Join(ctlErr, err)
}

// take keeps one block, and reports whether more may be read.
func (o *output) take(b []byte) bool {
	o.mu.Lock()
	room := o.c.LogCap - o.logged
	o.mu.Unlock()
	var logged int
	if o.c.Log != nil && room > 0 {
		logged, _ = o.c.Log.Write(b[:min(room, int64(len(b)))]) // a short count says it: Truncated
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logged += int64(logged)
	o.truncated = o.truncated || logged < len(b)
	if o.c.Log != nil && int64(logged) < min(room, int64(len(b))) {
		o.c.LogCap = 0 // no holes in the log
	}
	head := min(keepBytes-len(o.head), len(b))
	o.head = append(o.head, b[:head]...)
	for rest, at := b[head:], int(o.total+int64(head))%keepBytes; len(rest) > 0; at = 0 {
		if len(o.tail) < keepBytes { // the ring starts at a multiple of its size, since the head has that size
			n := min(keepBytes-len(o.tail), len(rest))
			o.tail, rest = append(o.tail, rest[:n]...), rest[n:]
			continue
		}
		rest = rest[copy(o.tail[at:], rest):]
	}
	o.total += int64(len(b))
	if o.budget >= 0 {
		o.budget -= int64(len(b))
		return o.budget > 0
	}
	return true
}

// lines gives the last whole line of a block to the caller, if its time has come.
func (o *output) lines(b []byte, now time.Time) {
	end := bytes.LastIndexByte(b, '\n')
	if end < 0 {
		o.keepPartial(b)
		return
	}
	line := b[:end]
	if start := bytes.LastIndexByte(line, '\n'); start >= 0 {
		line = line[start+1:]
	} else if o.keepPartial(line); !o.skip {
		line = o.partial
	} else {
		line = nil
	}
	if len(line) > 0 && len(line) <= lineMax && now.Sub(o.lastAt) >= lineEvery {
		o.lastAt = now
		o.c.Line(line)
	}
	o.partial, o.skip = o.partial[:0], false
	o.keepPartial(b[end+1:])
}

func (o *output) keepPartial(b []byte) {
	if o.skip = o.skip || len(o.partial)+len(b) > lineMax; !o.skip {
		o.partial = append(o.partial, b...)
	}
}

// finish reads what the pipe still holds after the proof, for 250 ms and two pipe sizes at most, and waits for that.
func (o *output) finish() {
	o.mu.Lock()
	if o.budget < 0 {
		o.budget = drainBytes
		_ = o.read.SetReadDeadline(time.Now().Add(drainTime)) // already closed at the end of file
	}
	o.mu.Unlock()
	select {
	case <-o.done:
	case <-time.After(20 * drainTime): // the log's disk hangs; the copier ends when it can
	}
}

// Output returns what was printed so far; all of it after WaitEmpty.
func (p *Process) Output() Output {
	o := p.out
	o.mu.Lock()
	defer o.mu.Unlock()
	tail := bytes.Clone(o.tail)
	if len(tail) == keepBytes {
		at := int(o.total % keepBytes)
		tail = append(bytes.Clone(o.tail[at:]), o.tail[:at]...)
	}
	truncated := o.truncated
	if o.c.Log == nil {
		truncated = o.total > int64(len(o.head)+len(tail))
	}
	return Output{Head: bytes.Clone(o.head), Tail: tail, Bytes: o.total, Truncated: truncated}
}
