package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
)

// Options of a Server. Those without a default are required.
type Options struct {
	Registry       *job.Registry
	Runner         *job.Runner
	Catalog        *adapters.Catalog
	Ledger         *ledger.Reader
	Version        string        // of the product, as clients are told
	Listen         string        // host:port of the HTTP listener, for the default of AllowedHosts
	AllowedHosts   []string      // values of Host; nil: Listen, and the loopback names with its port; port 80 and 443 may be left out
	AllowedOrigins []string      // values of Origin; nil: http and https at an allowed host that is loopback
	Auth           Authenticator // of HTTP requests; nil: none is served
	Limits         Limits
	Unchecked      bool         // offer all tools without asking for their programs: a start for one call
	Notify         func(Notice) // what an operator may want to know; nil: nobody does; must not block
}

// Transport is one end of a connection.
type Transport = mcp.Transport

// Limits bound what clients can make the server hold. The zero value of each field is its default.
type Limits struct {
	Calls                int           // HTTP requests that are answered at once, and calls of tools that go on; 0: 512
	CallsPerPrincipal    int           // 0: 256
	Rate                 int           // HTTP requests a second of one principal, three times as many at once; 0: 100
	Sessions             int           // MCP sessions of era B, which end when they were idle for 30 min; 0: 1000
	SessionsPerPrincipal int           // 0: 100
	BodyTimeout          time.Duration // for the whole body of a request; 0: 10 s
	KeepAlive            time.Duration // silence of a call until its stream gets a comment; then three times as long; 0: 5 s
}

// Notice is something that no event of the audit trail tells. It holds no token.
type Notice struct {
	Message string // what happened; fixed text
	Address string // of the client; may be empty
	Detail  string // may be empty
}

// Server is the MCP front door of one engine. Make one with New.
type Server struct {
	o        Options
	mcp      *mcp.Server
	tools    []*tool // sorted by name
	router   http.Handler
	hosts    map[string]bool
	origins  map[string]bool
	calls    gate     // of HTTP requests
	running  gate     // of tools
	requests *buckets // by principal
	failures *buckets // requests without a valid token, by network
	clients  clients
	noticed  atomic.Int64 // second of the last notice of a wrong token
	draining atomic.Bool
}

// New makes a server that offers the tools whose programs are found: it asks each for its version, which takes a moment. It returns an error for a tool that has the name of one of the server's own.
func New(o Options) (*Server, error) {
	if o.Notify == nil {
		o.Notify = func(Notice) {}
	}
	s := &Server{o: o}
	s.o.Limits.defaults()
	for _, g := range []*gate{&s.calls, &s.running} {
		g.all, g.each, g.open = s.o.Limits.Calls, s.o.Limits.CallsPerPrincipal, map[string]int{}
	}
	s.clients.open, s.clients.making = map[string]*mcpClient{}, map[string]int{}
	s.requests = newBuckets(rate.Limit(s.o.Limits.Rate), 3*s.o.Limits.Rate)
	s.failures = newBuckets(rate.Every(time.Minute/failuresPerMinute), failuresPerMinute)
	s.hosts, s.origins = o.allowed()
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "eda-sidecar", Title: "EDA tools as transactions", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Logger:       slog.New(notices{o.Notify}),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		SetCacheable: cacheable,
	})
	if err := s.addTools(); err != nil {
		return nil, err
	}
	s.addResources()
	s.mcp.AddReceivingMiddleware(s.middleware, noPrompts)
	s.router = s.eras()
	return s, nil
}

func (l *Limits) defaults() {
	l.Rate = cmp.Or(l.Rate, 100)
	l.Calls, l.CallsPerPrincipal = cmp.Or(l.Calls, 512), cmp.Or(l.CallsPerPrincipal, 256)
	l.Sessions, l.SessionsPerPrincipal = cmp.Or(l.Sessions, 1000), cmp.Or(l.SessionsPerPrincipal, 100)
	l.BodyTimeout, l.KeepAlive = cmp.Or(l.BodyTimeout, 10*time.Second), cmp.Or(l.KeepAlive, 5*time.Second)
}

// Handler serves /mcp and nothing else. Whoever owns the listener sets the limits of the http.Server.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Drain refuses new calls over HTTP from now on. Jobs, sessions and outputs can still be read, and jobs be cancelled.
func (s *Server) Drain() { s.draining.Store(true) }

// ServeStdio serves one client on a pair of streams, as p, until the end of in, until out is broken or nobody reads it, or until
// ctx ends: none of which is an error. Attached jobs are cancelled then; what was handed over is the registry's to stop.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer, p Principal) error {
	session, err := s.mcp.Connect(context.WithoutCancel(ctx), trusted{&stdio{ctx, in, out, s.o.Notify}, p}, nil)
	if err != nil {
		return fmt.Errorf("serve a client on a pipe: %w", err)
	}
	if err := session.Wait(); err != nil {
		s.o.Notify(Notice{Message: "a client on a pipe is gone", Detail: err.Error()})
	}
	return nil
}

// Connect serves one client in memory, as p, and returns its end.
func (s *Server) Connect(ctx context.Context, p Principal) (Transport, error) {
	ours, theirs := mcp.NewInMemoryTransports()
	if _, err := s.mcp.Connect(ctx, trusted{ours, p}, nil); err != nil {
		return nil, fmt.Errorf("serve a client in memory: %w", err)
	}
	return theirs, nil
}

// middleware stands around every method: it bends what the SDK would do otherwise.
func (s *Server) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil { // it touched no job: they run in goroutines of their own
				s.o.Notify(Notice{Message: "panic in a request", Detail: fmt.Sprintf("%s: %v", method, p)})
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error: " + method}
				if call, ok := req.(*mcp.CallToolRequest); ok {
					res, err = toResult(ended(job.Failed(call.Params.Name, errPanic))), nil
				}
			}
		}()
		who := principal(req.GetExtra())
		switch req := req.(type) {
		case *mcp.ListToolsRequest:
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
				list.Tools = s.visible(who)
			}
			return res, err
		case *mcp.ReadResourceRequest:
			ctx = context.WithValue(ctx, uriKey{}, req.Params.URI)
			req.Params.URI = scheme + resources()[0].plain() // the SDK always finds it, and completes the answer that readResource gives
		}
		return next(ctx, method, req)
	}
}

// noPrompts refuses the methods of a capability that is not there. The SDK would answer with an empty list.
func noPrompts(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "prompts/") {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "there are no prompts"}
		}
		return next(ctx, method, req)
	}
}

var errPanic = errors.New("internal error: a panic in the call")

// cacheable says for how long an answer holds. Nothing is for anybody but the caller.
func cacheable(_ context.Context, req mcp.Request, c *mcp.Cacheable) {
	c.CacheScope = "private"
	if _, ok := req.(*mcp.ListToolsRequest); ok {
		c.TTLMs = 300_000
	}
}

// notices turns what the SDK logs into notices: warnings and errors.
type notices struct{ notify func(Notice) }

// Enabled implements slog.Handler.
func (notices) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (n notices) Handle(_ context.Context, r slog.Record) error {
	var detail string
	r.Attrs(func(a slog.Attr) bool { detail += a.String() + " "; return true })
	n.notify(Notice{Message: "mcp: " + r.Message, Detail: detail})
	return nil
}

// WithAttrs implements slog.Handler.
func (n notices) WithAttrs([]slog.Attr) slog.Handler { return n }

// WithGroup implements slog.Handler.
func (n notices) WithGroup(string) slog.Handler { return n }
