package server

import (
	"context"
	"iter"
	"net/http"
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
	makes := r.Method == http.MethodPost && r.Header.Get(sessionHeader) == ""
	who, _ := r.Context().Value(whoKey{}).(Principal) // there is one: it came through the verifier
	if makes && !s.clients.room(s.mcp.Sessions(), who.Name, s.o.Limits) {
		unavailable(w, "too many MCP sessions")
		return
	}
	b.ServeHTTP(w, r)
	if id := w.Header().Get(sessionHeader); makes && id != "" {
		s.clients.add(id, who.Name)
	}
}

// clients knows whose the MCP sessions are: the SDK does not tell when one ends.
type clients struct {
	mu    sync.Mutex
	owner map[string]string // guarded by mu; by id
}

func (m *clients) add(id, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owner[id] = name
}

// room reports whether one more may be made.
func (m *clients) room(living iter.Seq[*mcp.ServerSession], name string, l Limits) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, mine := m.owner, 0
	m.owner = map[string]string{}
	for session := range living {
		if owner, ok := before[session.ID()]; ok {
			m.owner[session.ID()] = owner
			if owner == name {
				mine++
			}
		}
	}
	return len(m.owner) < l.Sessions && mine < l.SessionsPerPrincipal
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
		h.Cancel()
	}
}
