package lock

import (
	"slices"

	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// Owner says who holds or waits, for the answer to those who cannot.
type Owner struct {
	Job, Session, Tool, Principal string
	Since                         int64 // when the request was made, Unix milliseconds; for display only
}

// Request asks for a set of keys.
type Request struct {
	Owner Owner
	Keys  []Key
	// Alive is asked once after the grant; its error releases the keys and is returned. Nil: not asked.
	Alive func() error
}

// Options bound the queue. Zero values take the defaults.
type Options struct {
	MaxQueue      int // waiters in all; 0: 64
	MaxPerSession int // waiters with one session's key; 0: 16
}

// Table holds the keys of all running jobs, and the queue of those that wait for some. Make one with New.
type Table struct {
	// fixed at creation
	maxQueue, maxPerSession int

	mu msync.Mutex // guards all below, and the fields of every claim
	// guarded by mu
	held   []*claim
	queue  []*claim // in order of arrival, but a destroy is at the head
	leaked int      // slots that the mutant slotLeak never gives back
}

// claim is one request on its way. Its state changes under the table's mutex; decided is closed when it has.
type claim struct {
	owner   Owner
	keys    []Key
	session string // of a destroy: what it destroys
	state   state
	decided chan struct{}
}

type state int

const (
	waiting state = iota
	granted
	failed // its session was destroyed
	ended  // released or given up
)

// New returns an empty table.
func New(o Options) *Table {
	t := &Table{maxQueue: o.MaxQueue, maxPerSession: o.MaxPerSession}
	if t.maxQueue == 0 {
		t.maxQueue = 64
	}
	if t.maxPerSession == 0 {
		t.maxPerSession = 16
	}
	return t
}

// Acquire waits until all keys of r are granted together, or done is closed, and returns the idempotent release.
// The error is ErrCancelled, ErrDestroyed, a *BusyError, or what r.Alive returned; then nothing is held.
func (t *Table) Acquire(done <-chan struct{}, r Request) (release func(), err error) {
	c, err := t.enqueue(r, "")
	if err != nil {
		return nil, err
	}
	if err := t.await(done, c); err != nil {
		return nil, err
	}
	release = func() { t.release(c, false) }
	if r.Alive == nil || skipDestroyedRecheck {
		return release, nil
	}
	if err := r.Alive(); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Destroy waits, ahead of all waiters, until nobody holds the session, and returns the idempotent finish, which takes
// whether the tombstone is durable: if so it fails every waiter of the session with ErrDestroyed, else they go on.
// The error is ErrCancelled or ErrDestroyed (another destroy came first).
func (t *Table) Destroy(done <-chan struct{}, owner Owner, session Key) (finish func(tombstoned bool), err error) {
	c, err := t.enqueue(Request{Owner: owner, Keys: []Key{session}}, session.session)
	if err != nil {
		return nil, err
	}
	if err := t.await(done, c); err != nil {
		return nil, err
	}
	return func(tombstoned bool) { t.release(c, tombstoned) }, nil
}

// Holders returns those who hold a key that conflicts with k, in the order of their grants; with the zero Key all.
func (t *Table) Holders(k Key) []Owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	var owners []Owner
	for _, c := range t.held {
		if k.session == "" && len(k.chain) == 0 || overlap(c.keys, []Key{k}) {
			owners = append(owners, c.owner)
		}
	}
	return owners
}

// Waiting returns who holds a key that the waiting job wants, its zero value if nobody does, and how many earlier waiters
// want one, too.
func (t *Table) Waiting(job string) (holder Owner, ahead int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.queue, func(c *claim) bool { return c.owner.Job == job })
	if i < 0 {
		return Owner{}, 0
	}
	w := t.queue[i]
	for _, c := range t.held {
		if overlap(c.keys, w.keys) {
			holder = c.owner
			break
		}
	}
	for _, c := range t.queue[:i] {
		if overlap(c.keys, w.keys) {
			ahead++
		}
	}
	return holder, ahead
}

// Queued returns how many requests wait.
func (t *Table) Queued() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue)
}

func (t *Table) enqueue(r Request, destroys string) (*claim, error) {
	c := &claim{owner: r.Owner, keys: r.Keys, session: destroys, decided: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	if destroys != "" {
		t.queue = slices.Insert(t.queue, 0, c)
		t.grantLocked()
		return c, nil
	}
	t.queue = append(t.queue, c)
	t.grantLocked()
	if c.state == granted {
		return c, nil
	}
	if err := t.busyLocked(c); err != nil {
		t.queue = t.queue[:len(t.queue)-1]
		c.state = ended
		return nil, err
	}
	return c, nil
}

// busyLocked looks at the bounds of the queue, of which c is the last.
func (t *Table) busyLocked(c *claim) error {
	queued := 0
	for _, w := range t.queue {
		if sameSession(w.keys, c.keys) {
			queued++
		}
	}
	switch {
	case len(t.queue)+t.leaked > t.maxQueue:
		queued = len(t.queue) - 1 + t.leaked
	case queued > t.maxPerSession:
		queued--
	default:
		return nil
	}
	busy := &BusyError{Queued: queued}
	for _, h := range t.held {
		if overlap(h.keys, c.keys) {
			busy.Holder = h.owner
			break
		}
	}
	return busy
}

// await waits for the decision on c. One who gives up after the grant hands on.
func (t *Table) await(done <-chan struct{}, c *claim) error {
	gaveUp := msync.First(c.decided, done) == 1
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case c.state == failed:
		return ErrDestroyed
	case c.state == granted && !gaveUp:
		return nil
	case c.state == granted:
		if !loseHandOn {
			t.dropLocked(c)
		}
		return ErrCancelled
	}
	t.queue = slices.DeleteFunc(t.queue, func(w *claim) bool { return w == c })
	if slotLeak {
		t.leaked++
	}
	c.state = ended
	if !forgetBehind {
		t.grantLocked()
	}
	return ErrCancelled
}

func (t *Table) release(c *claim, tombstoned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.state != granted {
		return
	}
	if tombstoned {
		t.failLocked(c.session)
	}
	t.dropLocked(c)
}

// failLocked fails all that wait for a destroyed session, in the critical section that frees its key.
func (t *Table) failLocked(session string) {
	dead := Session(session)
	n := 0
	t.queue = slices.DeleteFunc(t.queue, func(w *claim) bool {
		if !overlap(w.keys, []Key{dead}) || failOnlyFirstWaiter && n > 0 {
			return false
		}
		n++
		w.state = failed
		msync.Close(w.decided)
		return true
	})
}

func (t *Table) dropLocked(c *claim) {
	c.state = ended
	t.held = slices.DeleteFunc(t.held, func(h *claim) bool { return h == c })
	t.grantLocked()
}

// grantLocked grants every waiter that conflicts neither with a holder nor with an earlier waiter.
func (t *Table) grantLocked() {
	var still []*claim
	for _, w := range t.queue {
		if !grantOverlap && anyOverlap(t.held, w) || !overtake && anyOverlap(still, w) {
			still = append(still, w)
			continue
		}
		w.state = granted
		t.held = append(t.held, w)
		msync.Close(w.decided)
	}
	t.queue = still
}

func anyOverlap(claims []*claim, w *claim) bool {
	return slices.ContainsFunc(claims, func(c *claim) bool { return overlap(c.keys, w.keys) })
}

func overlap(a, b []Key) bool {
	return slices.ContainsFunc(a, func(x Key) bool { return slices.ContainsFunc(b, x.conflicts) })
}

func sameSession(a, b []Key) bool {
	return slices.ContainsFunc(a, func(x Key) bool {
		return x.session != "" && slices.ContainsFunc(b, x.conflicts)
	})
}
