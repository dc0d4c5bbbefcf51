package fencepost

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"unicode"
)

// Version is the version of this package, which is the servers'.
const Version = "0.1.0"

// Default addresses of the servers.
const (
	DefaultServer = "http://127.0.0.1:7420"
	DefaultGuard  = "http://127.0.0.1:7421"
)

// Options are the settings of a [Client]. The zero value is usable.
type Options struct {
	// Server and Guard are the addresses of the lock server and of the guard.
	Server, Guard string
	// Owner names the holder of the leases, for people: 1 to 256 bytes, user@host:pid by default.
	Owner string
	// Incarnation is a text that every restart of the owner changes, for takeovers: by default a
	// random id of this process.
	Incarnation string
	// Token is the bearer token that authenticates this client; TokenFile is the file that holds
	// it.
	Token, TokenFile string
	// CAFile is the CA (PEM) that signs the servers' certificates; the system's by default.
	CAFile string
	// ClientCert and ClientKey are the files (PEM) for servers that require a certificate.
	ClientCert, ClientKey string
	// InsecureHTTP accepts http:// addresses of other machines, for networks that encrypt.
	InsecureHTTP bool
}

// String hides the bearer token.
func (o Options) String() string {
	type plain Options
	if o.Token != "" {
		o.Token = "***"
	}
	return fmt.Sprintf("%+v", plain(o))
}

// GoString hides the bearer token.
func (o Options) GoString() string { return "fencepost.Options" + o.String() }

// Client is the connection to one lock server and one guard. Any number of goroutines may use it.
type Client struct {
	server, guard *endpoint
	owner         string
	isOwnerGiven  bool
	incarnation   string
	background    background
}

// New checks the settings and creates a client. It connects to nothing yet. The error is of kind
// [ErrInvalid] and names the setting.
func New(options Options) (*Client, error) {
	config, failed := options.tlsConfig()
	if failed != nil {
		return nil, failed
	}
	token, failed := options.bearerToken()
	if failed != nil {
		return nil, failed
	}
	c := &Client{
		owner: options.Owner, isOwnerGiven: options.Owner != "", incarnation: options.Incarnation,
	}
	if c.owner == "" {
		c.owner = defaultOwner()
	}
	if c.incarnation == "" {
		c.incarnation = processIncarnation()
	}
	for what, text := range map[string]string{"owner": c.owner, "incarnation": c.incarnation} {
		if failed := checkText(what, text); failed != nil {
			return nil, failed
		}
	}
	shared := newHTTPClient(config)
	addresses := []string{options.Server, options.Guard}
	for i, address := range addresses {
		if address == "" {
			address = []string{DefaultServer, DefaultGuard}[i]
		}
		url, failed := parseServerURL(address)
		if failed != nil {
			return nil, failed
		}
		if failed := url.refusePlain(); failed != nil && !options.InsecureHTTP {
			return nil, failed
		}
		addresses[i] = url.base
	}
	bearer := func() string { return token }
	c.server = &endpoint{http: shared, base: addresses[0], token: bearer}
	c.guard = &endpoint{http: shared, base: addresses[1], token: bearer}
	return c, nil
}

// Owner is the owner that this client sends with its requests.
func (c *Client) Owner() string { return c.owner }

// Close waits until the releases in the background have ended, then closes idle connections. Call
// it before the process ends: a lease whose release was not sent holds its lock until it expires.
//
// The error is that of ctx if it ends first. Leases stay usable: Close ends nothing.
func (c *Client) Close(ctx context.Context) error {
	err := c.background.drained(ctx)
	c.server.http.CloseIdleConnections()
	return err
}

func (o *Options) tlsConfig() (*tls.Config, *Error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, failed := readFile("CA file", o.CAFile)
		if failed != nil {
			return nil, failed
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("CA file %s holds no certificate (PEM)", o.CAFile)
		}
	}
	switch {
	case o.ClientCert == "" && o.ClientKey == "":
	case o.ClientCert == "" || o.ClientKey == "":
		return nil, invalid("a client certificate needs both files: ClientCert (FENCE_CLIENT_CERT) " +
			"and ClientKey (FENCE_CLIENT_KEY)")
	default:
		pair, err := tls.LoadX509KeyPair(o.ClientCert, o.ClientKey)
		if err != nil {
			return nil, invalid("client certificate %s with key %s: %v", o.ClientCert, o.ClientKey, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// bearerToken reads the token. No error contains it.
func (o *Options) bearerToken() (string, *Error) {
	token := o.Token
	if o.TokenFile != "" {
		if o.Token != "" {
			return "", invalid("give Token or TokenFile, not both")
		}
		text, failed := readFile("bearer token file", o.TokenFile)
		if failed != nil {
			return "", failed
		}
		token = strings.TrimSpace(string(text))
		if token == "" {
			return "", invalid("bearer token file %s is empty", o.TokenFile)
		}
	}
	isPlain := func(c rune) bool { return c > ' ' && c < unicode.MaxASCII }
	if len(token) > 256 || strings.IndexFunc(token, func(c rune) bool { return !isPlain(c) }) >= 0 {
		return "", invalid("a bearer token is one word of 1 to 256 printable characters")
	}
	return token, nil
}

// defaultOwner is user@host:pid. A long host name must not displace the process id.
func defaultOwner() string {
	short := func(text string) string {
		kept := []rune{}
		for _, c := range text {
			if !unicode.IsControl(c) && c != unicode.ReplacementChar && len(kept) < 24 {
				kept = append(kept, c)
			}
		}
		return string(kept)
	}
	name := os.Getenv("USER")
	if current, err := user.Current(); name == "" && err == nil {
		name = current.Username
	}
	host, _ := os.Hostname()
	return short(name) + "@" + short(host) + ":" + strconv.Itoa(os.Getpid())
}
