package sidecar

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

const tokenFile = "token"

// capabilities are those of whoever runs the server: to hand over code must be allowed by the configuration.
func capabilities(cfg Config) []server.Capability {
	all := []server.Capability{server.Read, server.Mutate}
	if cfg.AllowScript {
		all = append(all, server.Script)
	}
	return all
}

// authenticator knows the callers of this server: everybody who can reach it (auth local), who has a token of the list, or,
// without a list, who has the token of the state directory, which is made if there is none.
func (s *service) authenticator() (server.Authenticator, error) {
	if s.cfg.Auth == "local" {
		return server.Local(capabilities(s.cfg)...), nil
	}
	if s.tokens != nil {
		return s.tokens.authenticate, nil
	}
	token, err := Token(s.cfg, true)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(token))
	s.o.Log.Info("clients need the token in " + filepath.Join(s.cfg.StateDir, tokenFile))
	return server.Tokens([]server.Token{{Name: "local", SHA256: hex.EncodeToString(sum[:]), Capabilities: capabilities(s.cfg)}})
}

// Token returns the token of the state directory. With make a missing one is made: 256 random bits, readable by us alone.
// A file that others could read or have written is refused.
func Token(cfg Config, make bool) (string, error) {
	path := filepath.Join(cfg.StateDir, tokenFile)
	dir, err := durable.OS().OpenRoot("sidecar.token.dir", cfg.StateDir)
	if err != nil {
		return "", fail(job.InvalidArgument, "read "+path, err)
	}
	defer func() { _ = dir.Close() }() // opened for reading
	at := durable.Name{Dir: dir, Name: tokenFile}
	st, err := durable.OS().Stat("sidecar.token.stat", at)
	if errors.Is(err, os.ErrNotExist) && make {
		return newToken(dir, at)
	}
	if err != nil {
		return "", fail(job.InvalidArgument, "read "+path, err)
	}
	if st.Type != durable.Regular || st.Mode&0o077 != 0 || int(st.UID) != os.Geteuid() || st.Size > 1024 {
		return "", fail(job.InvalidArgument, "read "+path, fmt.Errorf("want a file of ours that others cannot read (mode 0600), got a %s of uid %d, mode %#o: remove it, and the next start makes a new one", st.Type, st.UID, st.Mode))
	}
	f, err := durable.OS().OpenFile("sidecar.token.open", at)
	if err != nil {
		return "", fail(job.InvalidArgument, "read "+path, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	b, err := io.ReadAll(f.File())
	token := strings.TrimSpace(string(b))
	if err != nil || len(token) < 32 {
		return "", fail(job.InvalidArgument, "read "+path, fmt.Errorf("it holds no token: remove it, and the next start makes a new one"))
	}
	return token, nil
}

func newToken(dir durable.Handle, at durable.Name) (string, error) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails: crypto/rand
	token := hex.EncodeToString(random)
	fs := durable.OS()
	h, err := fs.Create("sidecar.token.create", at, 0o600)
	if err == nil {
		err = errors.Join(fs.WriteAt("sidecar.token.write", h, []byte(token+"\n"), 0), fs.Sync("sidecar.token.sync", h), h.Close(), fs.Sync("sidecar.token.dir", dir))
	}
	if errors.Is(err, syscall.ENOSPC) {
		return "", fail(job.WorkspaceFull, "write the token into the state directory", err)
	}
	if err != nil {
		return "", fail(job.Internal, "write the token into the state directory", err)
	}
	return token, nil
}
