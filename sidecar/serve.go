package sidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/metrics"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

// ServeOptions are what a server needs beside its configuration.
type ServeOptions struct {
	Version, Revision string
	Log               *slog.Logger
	// In and Out are the two ends of a client on standard input and output; nil: the server listens for HTTP.
	In  io.Reader
	Out io.Writer
}

// service is a running server. Its parts come one after another: until opened is set the probes alone answer.
type service struct {
	cfg      Config
	o        ServeOptions
	seam     seams
	metrics  *metrics.Sink
	tokens   *tokenList // nil: the token of the state directory
	opened   atomic.Pointer[opened]
	draining atomic.Bool
}

// opened is what there is once the workspace is open and recovered.
type opened struct {
	*Sidecar
	registry *job.Registry
	server   *server.Server
}

// Serve recovers the workspace, then serves MCP until ctx ends. It then drains: new calls are refused, queued ones end,
// running ones have the drain's time and are cancelled after it, proven dead and rolled back. It returns nil only if every
// process of every job was proven dead. A *job.Error says by its code what went wrong.
func Serve(ctx context.Context, cfg Config, o ServeOptions) error {
	return newService(cfg, o, seams{fs: durable.OS()}).serve(ctx)
}

// newService makes a service whose metrics hear what the engine does.
func newService(cfg Config, o ServeOptions, seam seams) *service {
	s := &service{cfg: cfg, o: o, seam: seam}
	var names []string
	for _, t := range cfg.Catalog.Tools() {
		names = append(names, t.Name)
	}
	s.metrics = metrics.New(metrics.Options{Version: o.Version, Revision: o.Revision, Tools: names, Gauges: s.gauges()})
	s.seam.sinks, s.seam.metrics = append(s.seam.sinks, s.metrics.Event), s.metrics
	return s
}

// serve is Serve.
func (s *service) serve(ctx context.Context) error {
	var front net.Listener
	if s.o.In == nil { // before the workspace is opened: a port that is taken is no reason to recover
		secured, err := s.pair()
		if err == nil {
			s.tokens, err = s.list()
		}
		if err == nil {
			front, err = listen("listen", s.cfg.Listen, maxClients)
		}
		if err != nil {
			return err
		}
		if secured != nil {
			front = tls.NewListener(front, secured)
		}
		defer func() { _ = front.Close() }() // closed by its server
	}
	if s.cfg.MetricsListen != "" {
		side, err := listen("metrics_listen", s.cfg.MetricsListen, maxProbes)
		if err != nil {
			return err
		}
		end := s.background(side, s.probes())
		defer end()
		s.o.Log.Info("metrics and probes on http://" + address(side))
	}
	s.seam.serving = s.url(front)
	engine, err := open(ctx, s.cfg, s.seam)
	if err != nil {
		return err
	}
	err = s.run(ctx, engine, front)
	return errors.Join(err, engine.Close())
}

// Connections that are open at once; further ones wait in the kernel's queue. Each listener has its own bound, so that
// clients, or who only pretends to be one, do not take the probes' place.
const (
	maxClients = 1024
	maxProbes  = 64
)

func listen(key, address string, most int) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fail(job.InvalidArgument, key, err)
	}
	return &bounded{l, make(chan struct{}, most)}, nil
}

// bounded is a listener with a bound of connections that are open at once.
type bounded struct {
	net.Listener
	open chan struct{} // holds one for each
}

// Accept implements net.Listener. It waits for a place, too: closing a connection makes one, and whoever closes the
// listener of an http.Server closes those.
func (l *bounded) Accept() (net.Conn, error) {
	l.open <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return &boundedConn{c, sync.OnceFunc(func() { <-l.open })}, nil
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// address is where a listener listens; empty for none.
func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// url is where a client finds what listens; empty for none.
func (s *service) url(l net.Listener) string {
	switch {
	case l == nil:
		return ""
	case s.cfg.TLSCert != "":
		return "https://" + address(l)
	}
	return "http://" + address(l)
}

// background serves HTTP beside what follows. It returns what ends it.
func (s *service) background(l net.Listener, h http.Handler) (end func()) {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelWarn), // every line of ours is JSON
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.o.Log.Error("a listener ended", "error", err.Error())
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // for the answers that are being written
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // streams that wait for events
		}
		<-ended
	}
}

// run serves on an open workspace until ctx ends or the client on standard input is gone.
func (s *service) run(ctx context.Context, engine *Sidecar, front net.Listener) error {
	s.logRecovered(engine.Recovered)
	o := &opened{Sidecar: engine, registry: job.NewRegistry(engine.Runner, job.RegistryOptions{})}
	auth, err := s.authenticator()
	if err != nil {
		return err
	}
	o.server, err = server.New(server.Options{
		Registry: o.registry, Runner: engine.Runner, Catalog: s.cfg.Catalog, Ledger: engine.Ledger.Reader, Version: s.o.Version,
		Listen: address(front), AllowedHosts: s.cfg.AllowedHosts, AllowedOrigins: s.cfg.AllowedOrigins, Auth: auth,
		Limits: server.Limits{Rate: int(s.cfg.RateLimit)}, Notify: s.notify,
	})
	if err != nil {
		return fail(job.Internal, "make the server", err)
	}
	control, err := listenControl(s.cfg.StateDir)
	if err != nil {
		return err
	}
	defer s.background(control, s.controls())()
	s.opened.Store(o)
	kept, end := context.WithCancel(context.WithoutCancel(ctx))
	var behind sync.WaitGroup
	defer behind.Wait()
	defer end()
	behind.Go(func() { s.keepHouse(kept, engine) })
	if front == nil {
		err = o.server.ServeStdio(ctx, s.o.In, s.o.Out, server.Principal{Name: "stdio", Capabilities: capabilities(s.cfg)})
		s.drain(o)
		return errors.Join(err, s.stop(o, 0))
	}
	defer s.background(front, o.server.Handler())()
	s.o.Log.Info("serving on " + s.url(front) + "/mcp")
	<-ctx.Done()
	s.o.Log.Info("draining", "error", context.Cause(ctx).Error())
	s.drain(o)
	return s.stop(o, s.cfg.DrainTimeout)
}

func (s *service) logRecovered(all []Recovered) {
	for _, r := range all {
		s.o.Log.Warn("recovered", "job_id", r.Job, "tool", r.Tool, "phase", string(r.Phase), "code", string(r.Resolution), "error", r.Reason)
	}
}

// keepHouse lets backups expire while the server runs, as a start does.
func (s *service) keepHouse(ctx context.Context, engine *Sidecar) {
	tick := time.NewTicker(min(s.cfg.BackupRetention, time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			kept, err := engine.recovery().retire(ctx, time.Minute)
			s.logRecovered(kept)
			if err != nil && ctx.Err() == nil {
				s.o.Log.Warn("backups could not be retired", "error", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// drain refuses new calls and ends queued ones. It may be called again; only a restart ends it.
func (s *service) drain(o *opened) {
	s.draining.Store(true)
	o.server.Drain()
	o.registry.Drain()
}

// stop waits until all jobs have ended; after patience it cancels them.
func (s *service) stop(o *opened, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.registry.Drain():
	case <-timer.C:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*(s.cfg.Grace+s.cfg.KillTimeout)+30*time.Second) // kill, proof, undo
	defer cancel()
	if err := o.registry.Stop(ctx); err != nil {
		return fail(job.TerminationUnproven, "drain", err)
	}
	if n := o.registry.Counts(); n.Unproven > 0 {
		return fail(job.TerminationUnproven, "drain", fmt.Errorf("%d jobs could not be proven dead", n.Unproven))
	}
	return nil
}

// notify logs what the server has to say.
func (s *service) notify(n server.Notice) {
	message := n.Message
	if n.Address != "" {
		message += ", from " + n.Address
	}
	s.o.Log.Warn(message, "error", n.Detail)
}

// Embedded is an engine with a server for one client in this process.
type Embedded struct {
	*Sidecar
	Transport server.Transport // the client's end
	registry  *job.Registry
}

// Embed opens the engine and serves this process alone, as whoever may open the workspace. Close ends what runs.
func Embed(ctx context.Context, cfg Config, version string) (*Embedded, error) {
	engine, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	e := &Embedded{Sidecar: engine, registry: job.NewRegistry(engine.Runner, job.RegistryOptions{})}
	front, err := server.New(server.Options{
		Registry: e.registry, Runner: engine.Runner, Catalog: cfg.Catalog, Ledger: engine.Ledger.Reader, Version: version, Unchecked: true,
	})
	if err == nil {
		e.Transport, err = front.Connect(context.WithoutCancel(ctx), server.Principal{Name: "local", Capabilities: capabilities(cfg)})
	}
	if err != nil {
		return nil, errors.Join(fail(job.Internal, "make the server", err), engine.Close())
	}
	return e, nil
}

// Close cancels what runs, waits for its end, and closes the engine.
func (e *Embedded) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(e.registry.Stop(ctx), e.Sidecar.Close())
}
