// The one place where Asio's function bodies are compiled.
#include <boost/asio/impl/src.hpp>
