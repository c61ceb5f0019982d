package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/server/codec"
)

// How long a message may wait for a peer that does not read: while the connection lives, and once it is over.
const (
	unreadTimeout = 30 * time.Second
	lastWords     = 5 * time.Second
)

// errUnread says that the peer takes nothing any more: it is gone, as if its end were closed.
var errUnread = errors.New("write message: nobody reads")

// stdio is the transport of one client on a pair of streams. Unlike the SDK's it survives a message that is too large or
// malformed, and answers it.
type stdio struct {
	ctx    context.Context // its end is the end of the input
	in     io.Reader
	out    io.Writer
	notify func(Notice)
}

// Connect implements mcp.Transport. One goroutine reads until the input ends.
func (t *stdio) Connect(context.Context) (mcp.Connection, error) {
	c := &stdioConn{stdio: t, incoming: make(chan jsonrpc.Message), ended: make(chan struct{}), closed: make(chan struct{})}
	c.gate.Enter(&catalog)
	c.encoder = codec.NewEncoder(t.out, &c.gate)
	go c.read()
	return c, nil
}

type stdioConn struct {
	*stdio
	gate     codec.Gate
	encoder  *codec.Encoder
	first    sync.Once
	incoming chan jsonrpc.Message
	ended    chan struct{} // closed after err was set
	err      error         // how the input ended
	closed   chan struct{}
	closing  sync.Once
}

// read hands each message on, and answers those that are none.
func (c *stdioConn) read() {
	defer close(c.ended)
	d := codec.NewDecoder(c.in, &c.gate)
	for c.err == nil {
		var frame codec.Frame
		if frame, c.err = d.Next(); c.err != nil {
			return
		}
		switch f := frame.(type) {
		case *codec.TooLarge:
			c.err = c.write(f.Answer())
		case *codec.Malformed:
			c.err = c.write(f.Answer())
		case codec.Raw:
			m, err := jsonrpc.DecodeMessage(f)
			if err != nil {
				c.err = c.write((&codec.Malformed{Err: err}).Answer())
				continue
			}
			select {
			case c.incoming <- m:
			case <-c.closed:
				return
			}
		}
	}
}

// Read implements mcp.Connection.
func (c *stdioConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.incoming:
		return m, nil
	case <-c.ended:
		return nil, c.err
	case <-c.ctx.Done():
		return nil, io.EOF
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Write implements mcp.Connection. The first answer lets the peer send large calls: it must be able to as soon as it has it.
func (c *stdioConn) Write(_ context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	c.first.Do(func() { c.gate.Enter(&calls) })
	var large *codec.TooLarge
	if err = c.write(b); errors.As(err, &large) { // our bug: the peer was told
		c.notify(Notice{Message: "an answer was not sent", Detail: large.Error()})
		return nil
	}
	return err
}

// write writes one message, and waits for it within bounds: a blocking pipe has no deadlines. What it gives up stays in the
// writer beneath until the pipe is closed; nothing can follow it.
func (c *stdioConn) write(b []byte) error {
	done := make(chan error, 1)
	go func() { done <- c.encoder.Write(b) }()
	timer := time.NewTimer(unreadTimeout)
	defer timer.Stop()
	ended, over := c.ended, c.ctx.Done()
	for {
		select {
		case err := <-done:
			return err
		case <-timer.C:
			return errUnread
		case <-ended:
		case <-over:
		}
		ended, over = nil, nil
		timer.Reset(lastWords)
	}
}

// Close implements mcp.Connection. The streams are their owner's.
func (c *stdioConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return nil
}

// SessionID implements mcp.Connection.
func (c *stdioConn) SessionID() string { return "" }

// trusted is a transport whose client needs no token: it is p.
type trusted struct {
	mcp.Transport
	p Principal
}

// Connect implements mcp.Transport.
func (t trusted) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	return &trustedConn{c, t.p}, err
}

type trustedConn struct {
	mcp.Connection
	p Principal
}

// Read implements mcp.Connection: it says with each request who sent it.
func (c *trustedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if req, ok := m.(*jsonrpc.Request); ok {
		req.Extra = &mcp.RequestExtra{TokenInfo: c.p.info(), Header: http.Header{requestID: {cutText(fmt.Sprint(req.ID.Raw()), maxRequestID)}}}
	}
	return m, err
}
