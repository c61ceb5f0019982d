package sidecar

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"sync"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

// pair reads the certificate of the endpoint, once; nil: it speaks no TLS.
func (s *service) pair() (*tls.Config, error) {
	if s.cfg.TLSCert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.cfg.TLSCert, s.cfg.TLSKey)
	if err == nil && time.Now().After(pair.Leaf.NotAfter) {
		err = fmt.Errorf("it has expired at %v", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return nil, fail(job.InvalidArgument, fmt.Sprintf("tls_cert %q with tls_key %q", s.cfg.TLSCert, s.cfg.TLSKey), err)
	}
	// HTTP/2 would put many requests on one connection, past the bound of connections and the deadlines of writes.
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}, nil
}

// tokenList knows callers by the tokens of a file, which it reads again when the file has changed. While the file is
// unreadable or wrong nobody is let in: a mistake in it must not bring back what it revokes.
type tokenList struct {
	path   string
	script bool // tokens may give the capability
	warn   func(error)

	mu     sync.Mutex
	looked time.Time            // guarded by mu
	seen   fs.FileInfo          // guarded by mu; of the file as it was read; nil: it was not
	auth   server.Authenticator // guarded by mu; nil: nobody is let in
}

// lookEvery is how long a token that is taken out of the file may still be good.
const lookEvery = time.Second

// list reads the configured tokens; nil: there is no list.
func (s *service) list() (*tokenList, error) {
	if s.cfg.Tokens == "" {
		return nil, nil
	}
	l := &tokenList{path: s.cfg.Tokens, script: s.cfg.AllowScript, warn: func(err error) { s.o.Log.Error("nobody is let in", "error", err.Error()) }}
	return l, l.look()
}

// authenticate is a server.Authenticator.
func (l *tokenList) authenticate(h http.Header) (server.Principal, error) {
	l.mu.Lock()
	if time.Since(l.looked) > lookEvery {
		if err := l.look(); err != nil {
			l.warn(err)
		}
	}
	auth := l.auth
	l.mu.Unlock()
	if auth == nil {
		return server.Principal{}, errors.New("no bearer token is valid now")
	}
	return auth(h)
}

// look reads the file if it is not what was read.
func (l *tokenList) look() error {
	l.looked = time.Now()
	info, err := os.Stat(l.path)
	if err == nil && l.seen != nil && os.SameFile(info, l.seen) && info.ModTime().Equal(l.seen.ModTime()) && info.Size() == l.seen.Size() && info.Mode() == l.seen.Mode() {
		return nil
	}
	l.seen, l.auth = nil, nil
	if err == nil && info.Mode()&0o022 != 0 {
		err = fmt.Errorf("mode %#o lets others write it", info.Mode().Perm())
	}
	var text []byte
	if err == nil {
		text, err = readFile(l.path)
	}
	if err == nil {
		l.auth, err = l.parse(text)
	}
	if err != nil {
		return fail(job.InvalidArgument, fmt.Sprintf("tokens %q", l.path), err)
	}
	l.seen = info
	return nil
}

var atLine = regexp.MustCompile(`line \d+`)

// parse reads a list. Its errors say nothing of what is there: a token may be where its digest should be.
func (l *tokenList) parse(text []byte) (server.Authenticator, error) {
	var file []struct {
		Name         string              `yaml:"name"`
		SHA256       string              `yaml:"sha256"`
		Capabilities []server.Capability `yaml:"capabilities"`
		NotAfter     string              `yaml:"not_after"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%q: want a list of name, sha256, capabilities and, if it ends, not_after", atLine.FindAllString(err.Error(), 3))
	}
	list := make([]server.Token, len(file))
	for i, f := range file {
		list[i] = server.Token{Name: f.Name, SHA256: f.SHA256, Capabilities: f.Capabilities}
		if f.NotAfter != "" {
			var err error
			if list[i].NotAfter, err = time.Parse(time.RFC3339, f.NotAfter); err != nil {
				return nil, fmt.Errorf("token %d: not_after is no time, such as 2030-12-31T00:00:00Z", i)
			}
		}
		for _, c := range f.Capabilities {
			if c == server.Script && !l.script {
				return nil, fmt.Errorf("token %d: capability %q needs allow_script", i, c)
			}
		}
	}
	return server.Tokens(list)
}
