package server

import (
	"context"
	"iter"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// eraA is the first revision without handshake and MCP sessions. Everything before it is era B.
const eraA = "2026-07-28"

// sessionTimeout ends an MCP session of era B that no request has used for so long; the SDK's default is never.
const sessionTimeout = 30 * time.Minute

// whoKey is the key of the Principal in a request's context.
type whoKey struct{}

// eras routes each request to the handler of its era: a stateless one cannot hear notifications/cancelled of era B, a
// stateful one refuses era A. Both serve the same mcp.Server.
func (s *Server) eras() http.Handler {
	server := func(*http.Request) *mcp.Server { return s.mcp }
	a := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, DisableLocalhostProtection: true, // our list of hosts is stricter
	})
	b := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		SessionTimeout: sessionTimeout, DisableLocalhostProtection: true,
	})
	// The only way to give the SDK a TokenInfo, which binds an MCP session to its principal, is its own middleware.
	known := func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		who, ok := ctx.Value(whoKey{}).(Principal)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return who.info(), nil
	}
	return auth.RequireBearerToken(known, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Protocol-Version") < eraA {
				s.serveB(b, w, r)
				return
			}
			over := &handOver{ResponseWriter: w, ctx: r.Context()}
			a.ServeHTTP(over, r.WithContext(context.WithValue(r.Context(), handOverKey{}, over)))
			over.end()
		}))
}

// sessionHeader names an MCP session of era B.
const sessionHeader = "Mcp-Session-Id"

// serveB serves era B, where a request without a session may make one, which then costs memory until it times out.
func (s *Server) serveB(b http.Handler, w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(sessionHeader)
	makes := r.Method == http.MethodPost && id == ""
	who, _ := r.Context().Value(whoKey{}).(Principal) // there is one: it came through the verifier
	switch {
	case makes:
		if !s.clients.room(s.mcp.Sessions(), who.Name, s.o.Limits) {
			unavailable(w, "too many MCP sessions")
			return
		}
		defer func() { s.clients.made(w.Header().Get(sessionHeader), who.Name) }()
	case r.Method == http.MethodDelete:
		ctx, cancel := context.WithTimeout(r.Context(), deleteTimeout)
		defer s.clients.end(ctx, id, who.Name)() // the SDK would wait for the calls that go on, and cancel none
		cancel()
	}
	b.ServeHTTP(w, r)
}

// deleteTimeout bounds how long a DELETE waits for the proof that the jobs of its MCP session are dead.
const deleteTimeout = 10 * time.Second

// clients knows the MCP sessions: the SDK tells neither when one ends nor what goes on in it.
type clients struct {
	mu sync.Mutex
	// guarded by mu
	open   map[string]*mcpClient // by id
	making map[string]int        // requests that may make one, by principal
}

// mcpClient is one MCP session of era B.
type mcpClient struct {
	owner string
	ctx   context.Context // ends with a DELETE
	leave context.CancelFunc
	jobs  []*job.Handle // guarded by the mutex of clients; of its calls, without those that asked to be detached
}

// get returns the MCP session of an id: at the latest its first call makes it known.
func (m *clients) get(id, name string) *mcpClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.getLocked(id, name)
}

func (m *clients) getLocked(id, name string) *mcpClient {
	c := m.open[id]
	if c == nil {
		c = &mcpClient{owner: name}
		c.ctx, c.leave = context.WithCancel(context.Background())
		m.open[id] = c
	}
	return c
}

// add notes that a job ends with its MCP session.
func (m *clients) add(c *mcpClient, h *job.Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.jobs = append(slices.DeleteFunc(c.jobs, (*job.Handle).Ended), h)
}

// room reports whether one more may be made, and keeps its place until made is called.
func (m *clients) room(living iter.Seq[*mcp.ServerSession], name string, l Limits) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, all, mine := m.open, 0, m.making[name]
	for _, n := range m.making {
		all += n
	}
	m.open = map[string]*mcpClient{}
	for session := range living {
		if c, ok := before[session.ID()]; ok {
			m.open[session.ID()] = c
			if c.owner == name {
				mine++
			}
		}
	}
	if all+len(m.open) >= l.Sessions || mine >= l.SessionsPerPrincipal {
		return false
	}
	m.making[name]++
	return true
}

// made ends what room began: with the id of the MCP session, if one was made.
func (m *clients) made(id, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.making[name]--; m.making[name] == 0 {
		delete(m.making, name)
	}
	if id != "" {
		m.getLocked(id, name)
	}
}

// end cancels what goes on in a principal's MCP session, also what was handed over, and waits until it is proven dead or ctx ends. It
// returns what forgets the session, once no call of it is left.
func (m *clients) end(ctx context.Context, id, name string) (forget func()) {
	m.mu.Lock()
	c := m.open[id]
	if c == nil || c.owner != name { // which the SDK refuses
		m.mu.Unlock()
		return func() {}
	}
	jobs := slices.Clone(c.jobs)
	m.mu.Unlock()
	jobs = slices.DeleteFunc(jobs, func(h *job.Handle) bool { return !h.Disown() }) // others wait for the job, or it is over
	c.leave()
	for _, h := range jobs {
		select {
		case <-h.Done():
		case <-ctx.Done():
		}
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.open, id)
	}
}

// handOverKey is the key of the handOver in the context of a request of era A.
type handOverKey struct{}

// handOver watches whether the answer that hands a job over begins to be written while its caller is there. In era A a
// caller that is gone before never learns the job's id, so the job ends. (Later than that nothing tells: clients close the
// stream as soon as they have their answer.)
type handOver struct {
	http.ResponseWriter
	ctx     context.Context // of the request
	job     atomic.Pointer[job.Handle]
	written atomic.Bool
}

// keep notes that the answer to the call of ctx is the only one that tells of h.
func keep(ctx context.Context, h *job.Handle) {
	if over, ok := ctx.Value(handOverKey{}).(*handOver); ok {
		over.job.Store(h)
	}
}

// Write writes to the client. What follows keep is the answer.
func (o *handOver) Write(b []byte) (int, error) {
	there := o.job.Load() != nil && o.ctx.Err() == nil
	n, err := o.ResponseWriter.Write(b)
	if there && err == nil {
		o.written.Store(true)
	}
	return n, err
}

// Unwrap lets http.ResponseController flush.
func (o *handOver) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// end is called when the request is over.
func (o *handOver) end() {
	if h := o.job.Load(); h != nil && !o.written.Load() {
		h.Disown()
	}
}
