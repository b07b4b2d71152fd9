package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
)

// TLS is a server's certificate, key and roots in PEM.
type TLS struct {
	Certificate, Key []byte
	// Roots are the certificates of the authority that signed Certificate.
	Roots []byte
	// Host is a name or an address in Certificate.
	Host string
}

// tlsFiles are the paths of a server's TLS files.
type tlsFiles struct{ certificate, key, roots string }

var errNoTLSInDocker = errors.New("TLS is set up for installed binaries only, not in Docker")

// write writes the files into dir, for the account that runs the server.
func (c *TLS) write(dir string, as account) (tlsFiles, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	files := tlsFiles{certificate: in("server.pem"), key: in("server.key"), roots: in("roots.pem")}
	for path, text := range map[string][]byte{
		files.certificate: c.Certificate, files.key: c.Key, files.roots: c.Roots,
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return files, err
		}
		if err := as.own(path); err != nil {
			return files, err
		}
	}
	return files, nil
}

// client returns the configuration of a client for this very server. It checks the name in the
// certificate, whatever address the client dials.
func (c *TLS) client() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Roots)
	return &tls.Config{RootCAs: roots, ServerName: c.Host, MinVersion: tls.VersionTLS12}
}
