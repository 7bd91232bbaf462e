#include "weft/http/access.h"

#include <gtest/gtest.h>

namespace weft::http {
namespace {

bool opens(std::string_view authorization, Access access, const ServerKeys& keys) {
  Request request;
  if (!authorization.empty()) request.headers.add("Authorization", std::string(authorization));
  return has_access(request, access, keys);
}

TEST(Access, NeedsTheKeyOfItsClass) {
  const ServerKeys keys{"admin-secret", "read-secret"};

  EXPECT_TRUE(opens("", Access::kOpen, keys));
  EXPECT_TRUE(opens("Bearer read-secret", Access::kRead, keys));
  EXPECT_TRUE(opens("Bearer admin-secret", Access::kRead, keys));
  EXPECT_TRUE(opens("bEARER  admin-secret", Access::kAdmin, keys));
  EXPECT_FALSE(opens("Bearer read-secret", Access::kAdmin, keys));
}

TEST(Access, RefusesWhatIsNotTheKey) {
  const ServerKeys keys{"admin-secret", "read-secret"};

  for (const char* field :
       {"", "Bearer", "Bearer ", "Bearer x", "Bearer read-secre", "Bearer read-secret2",
        "Bearer READ-SECRET", "Bearer read-secretread-secret", "Basic read-secret", "read-secret",
        "Bearer read-secret read-secret"}) {
    EXPECT_FALSE(opens(field, Access::kRead, keys)) << field;
    EXPECT_FALSE(opens(field, Access::kAdmin, keys)) << field;
  }
}

TEST(Access, IsOpenWhereNoKeyIsConfigured) {
  const ServerKeys admin_only{"admin-secret", ""};
  EXPECT_TRUE(opens("", Access::kRead, admin_only));
  EXPECT_FALSE(opens("", Access::kAdmin, admin_only));
  const ServerKeys read_only{"", "read-secret"};
  EXPECT_FALSE(opens("Bearer ", Access::kRead, read_only));
  EXPECT_TRUE(opens("", Access::kAdmin, read_only));
}

}  // namespace
}  // namespace weft::http
