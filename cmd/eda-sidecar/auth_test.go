package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// entry is a line of a list of tokens.
func entry(name, token, more string) string {
	return fmt.Sprintf("- {name: %s, sha256: %x, capabilities: [%s}\n", name, sha256.Sum256([]byte(token)), more)
}

// status is what one request with a token is answered with, in an era; session is of an MCP session.
func (s *served) status(version, token, session string) int {
	s.w.t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientCapabilities":{}}}}`
	if version < "2026" {
		body = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	}
	r, err := http.NewRequestWithContext(s.w.t.Context(), http.MethodPost, "http://"+s.mcp+"/mcp", strings.NewReader(body))
	ok(s.w.t, err)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": version, "Mcp-Method": "tools/list",
		"Authorization": "Bearer " + token, "Mcp-Session-Id": session,
	} {
		if value != "" && value != "Bearer " {
			r.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(r)
	ok(s.w.t, err)
	ok(s.w.t, resp.Body.Close())
	return resp.StatusCode
}

// TestTokenList: whose token is good, for what and for how long. No token is ever written down.
func TestTokenList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const alice, reader, old = "planted-alice-0123456789-0123456789", "planted-reader-0123456789-0123456789", "planted-old-0123456789-0123456789-0"
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(text string) {
		t.Helper()
		ok(t, os.WriteFile(file+".new", []byte(text), 0o600))
		ok(t, os.Rename(file+".new", file))
	}
	list := entry("reader", reader, "read]") + entry("old", old, "read], not_after: 2020-01-01T00:00:00Z") + entry("short", "short", "read]")
	all := list + entry("alice", alice, "read, mutate, script]")
	write(all)
	w.serving("tokens: " + file)
	s := w.serve()
	if _, err := os.Stat(w.path(".eda-sidecar/state/token")); err == nil || s.token != "" {
		t.Error("there is another token, too")
	}
	for _, version := range []string{"2026-07-28", "2025-11-25"} { // ten in all: the eleventh would be 429
		for _, token := range []string{"", "planted-wrong-0123456789-0123456789", "short", old, alice[1:]} {
			if got := s.status(version, token, ""); got != http.StatusUnauthorized {
				t.Errorf("%s: token %q gets %d", version, token, got)
			}
		}
		if got := s.status(version, alice, ""); got != http.StatusOK {
			t.Errorf("%s: alice gets %d", version, got)
		}
	}
	s.token = alice
	c := s.connect(nil)
	a := s.must(c, "sh_run", with(w.script(s.session(c, "one"), "sleep 60", "build/a.v"), "detach", true))
	w.until("the tool runs", func() bool { return len(w.markedPIDs()) > 0 })
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.run.pid()))
	ok(t, err)
	for _, pid := range w.markedPIDs() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		ok(t, err)
		b = append(b, env...)
	}
	if bytes.Contains(b, []byte("planted")) {
		t.Error("a token is in an environment")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	held, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: "http://" + s.mcp + "/mcp", HTTPClient: &http.Client{Transport: bearer(alice)}, MaxRetries: -1, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	ok(t, err)
	defer func() { _ = held.Close() }() // the server may be gone
	if got := s.status("2025-11-25", reader, held.ID()); held.ID() == "" || got != http.StatusForbidden {
		t.Errorf("somebody else's MCP session: %d", got)
	}
	foreign := &served{w: w, mcp: s.mcp, token: reader}
	other := foreign.connect(nil)
	if a := foreign.must(other, "session_open", nil); a.Code != job.Denied {
		t.Errorf("a reader opens a session: %+v", a.Result)
	}
	if a := foreign.must(other, "job_cancel", map[string]any{"job_id": a.Job}); a.Code != job.InvalidArgument {
		t.Errorf("a reader cancels somebody else's job: %+v", a.Result)
	}
	s.must(c, "job_cancel", map[string]any{"job_id": a.Job})
	for _, text := range []string{list, "- planted-plain"} { // revoked, or a mistake
		write(text)
		w.until("alice is let in no more", func() bool { return s.status("2026-07-28", alice, "") != http.StatusOK })
		if got, want := s.status("2026-07-28", reader, "") == http.StatusOK, text == list; got != want {
			t.Errorf("with %q the reader is let in: %t", text, got)
		}
		write(all)
		w.until("alice is let in again", func() bool { return s.status("2026-07-28", alice, "") == http.StatusOK })
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d", exit)
	}
	if log := s.log.String(); strings.Contains(log, "planted") || !strings.Contains(log, "nobody is let in") || !strings.Contains(log, "without a valid token") {
		t.Errorf("log: %s", log)
	}
	ok(t, filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("planted")) {
			t.Errorf("a token is in %s", path)
		}
		return err
	}))
	for name, text := range map[string]string{"empty": "", "plain": "- {name: a, sha256: planted-plain}", "twice": all + entry("b", alice, "read]"), "expired": entry("old", old, "read], not_after: 2020-01-01T00:00:00Z"), "unknown": entry("a", alice, "root]")} {
		write(text)
		if a := w.do("serve", "--listen", "127.0.0.1:0"); a.exit != exitUsage || !strings.Contains(a.err, "tokens ") || strings.Contains(a.err, "planted") {
			t.Errorf("%s: %v", name, a)
		}
	}
	write(all)
	ok(t, os.Chmod(file, 0o622))
	if a := w.do("serve", "--listen", "127.0.0.1:0"); a.exit != exitUsage || !strings.Contains(a.err, "lets others write") {
		t.Errorf("a list that others write: %v", a)
	}
	w.sound()
}

// certify writes a certificate for loopback, and its key.
func certify(t *testing.T, until time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, IPAddresses: []net.IP{{127, 0, 0, 1}}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	ok(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	ok(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ok(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	ok(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// TestServeTLS: with a pair the server speaks TLS 1.2 or later and nothing else, also beyond loopback.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cert, key := certify(t, time.Now().Add(time.Hour))
	expired, expiredKey := certify(t, time.Now().Add(-time.Hour))
	for name, pair := range map[string][2]string{"expired": {expired, expiredKey}, "mismatched": {cert, expiredKey}, "missing": {cert, key + ".none"}} {
		if a := w.do("serve", "--listen", "127.0.0.1:0", "--tls-cert", pair[0], "--tls-key", pair[1]); a.exit != exitUsage || !strings.Contains(a.err, "tls_cert") {
			t.Errorf("%s: %v", name, a)
		}
	}
	port := freePort(t)
	w.config("allow_script: true", "allowed_hosts: ['127.0.0.1:"+port+"']", "tools:", shellTool)
	s := w.serve("--listen", "0.0.0.0:"+port, "--tls-cert", cert, "--tls-key", key)
	text, err := os.ReadFile(cert)
	ok(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	for version, good := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version, NextProtos: []string{"h2", "http/1.1"}}}).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
		if (err == nil) != good {
			t.Errorf("TLS %#x: %v", version, err)
		}
		if err == nil {
			if p := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; p != "http/1.1" {
				t.Errorf("negotiated %q", p)
			}
			ok(t, c.Close())
		}
	}
	call := w.command(nil, "call", "sh_run", "script=echo new > $1", "a=build/a.v", "--server", "https://127.0.0.1:"+port, "--json")
	call.cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+cert)
	if a := call.start().wait(); a.exit != 0 {
		t.Errorf("call --server https: %v", a)
	}
	w.is("build/a.v", "new\n")
	if a := w.do("run", "--", "true"); a.exit != exitRetry || !strings.Contains(a.err, "call --server https://") {
		t.Errorf("beside a server: %v", a)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{Endpoint: "http://127.0.0.1:" + port + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.token)}, MaxRetries: -1}, nil); err == nil {
		t.Error("it answers without TLS")
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	ok(t, err)
	ok(t, l.Close())
	return port
}
