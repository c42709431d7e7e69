#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/hopper_sums.h"
#include "math/e4m3.h"

// The model of Hopper's sums against sums that an H200 formed (wgmma m64n64k32, E4M3), and by hand.
namespace mok::oracle {
namespace {

struct Factors {
    std::vector<float> values;
    std::vector<int32_t> exponents;

    void add(float value) {
        values.push_back(value);
        exponents.push_back(hopper_exponent(value));
    }
    // Two hexadecimal digits an element.
    static Factors of(const std::string& bytes) {
        Factors f;
        for (size_t i = 0; i < bytes.size(); i += 2) {
            f.add(to_f32(E4m3{static_cast<uint8_t>(std::stoi(bytes.substr(i, 2), nullptr, 16))}));
        }
        return f;
    }
    HopperFactors all() const { return {values.data(), exponents.data()}; }
};

struct Measured {
    std::string a, b;
    uint32_t sums[4];  // of the first 32, 64, 96 and 128 products, bits of FP32
};

// Three pairs of rows of normal numbers, three of any bits.
const std::vector<Measured>& measured() {
    static const std::vector<Measured> all{
        {"f163e869f775f47270f1766cdd576c6b6a62f1eee578f8ecf3eae3d06cfaede57078f2e0d165"
         "7271eaeedcc7f1eb595d5f79eef059717153e968ed59fb6fec5773da72f374eed5dbe9ee6260"
         "7172f36153f26fd2e3f969e67162ede6536ed16eedecdaf0d4f3f9b346f46df1f1e17475ecf1"
         "7452f4d8e4e67470f25a5979ea66",
         "59756ff16858ef7869f4f6dde3f06a6b66e5d361f17270e45ad8e5f6ef6febf472ee73f96464"
         "6175eaeaef547bf3f3606becb679d4daede1f2e6f163e3e0f35dea6ff4696e71e2e8e86e71f1"
         "e8d1d8edee67e76bfbeee0edd6d97ce0605051e86ee97aeb7177ee6adfef61eef1edef6ce962"
         "f5dde1e9686cead4e3c8664bdaca",
         {0x46ef3000, 0xc5b1e000, 0xc7b20800, 0xc7a41800}},
        {"da686df95573dbe363e96aee77ef72f16b6cf4e9f0706969eb64f06970fc74697370f2ece172"
         "607251e1ed70ec5776eff071e9ee726d72f460da5f5c6234cfe9b0f0fa6ced68617479fa75ea"
         "ebe9686af04d71bdf7d5595a5939796463ebeff871f372e46b6f69716575dbefed59b5dce170"
         "f5f5eb73cc6d73cf6deceed86fe6",
         "eb6fee696c745962f8dff769deef6c71ef6fe6e1f671ea76edeb6369e56564f8fae16c6559f6"
         "f4e9ec6bc1e06f6c7c67e0f0e976f463f8e96a69635bef616967de4e757178be6731ecd4edee"
         "727bf474e2f06b51eccb7061ecd4f0715ae4696f735e6b5c7c597b63f2f4eff4f768edf1f46e"
         "ecf7e97577e3f8e4e7f36274e4db",
         {0x467e9000, 0xc814e800, 0xc89f5000, 0xc8052800}},
        {"f9e66cf669ecd2fbe9d1e6e44671f871586a6af1edd5da6b7469f8546ee370f2f465f0d870ec"
         "76eef75a66e96df6ea7873e8756beaeef36f6f5d6bbdecf4e7686a7168f4eb5c70f0607073f6"
         "ebe8e62661e5f3e56d68767151616e727377e9f7edf371eaec6e725b6ce5eeea5cf273d7fdd8"
         "e66a70e0eb63704ee876e9e76fcc",
         "68e8695c566560c8d0795ff358ec74636a6bed6be5e1f8e468717054d9e868f56af2ebe56f9a"
         "5c6ee863686ce4e464e87aead9e6d4e077f26df1f4eb686a77ebf66f736261db64e0e7616a5c"
         "ed70f3f3f97567d042eae0f57263e9d86e6e6862e4f3d9f96ae56be4426b6271eefbd0f2d96a"
         "eaf3f1f8d4d8ec5f55eded72f3da",
         {0xc722a400, 0xc7c3d000, 0xc7e4c000, 0xc7c25400}},
        {"d001ca0412a7f23511872f9832118c86703e2ff1778e569ea3011ee107c41a6214bf212b2857"
         "422299df7e7bce5c48591515e942f1483dd4f9eca6c67806115335b7023edcb1fd5192786c57"
         "f3d625cddd22761d23be0e869f6b4e84422f22641b72c7ad3c2080cbad0ea93767aaf4ce5c46"
         "bacfbcd15bf15f10d301e48efeb0",
         "2bad9f94529d417e3609b0148c134e04db2fc290f0b89bb846124bdbfa1b0d746f04085dd4ac"
         "45976802343141882fb33b680cc9c2e1191f84d9e48c5c35bf9a75e6ebe71dfe5159ea1e99c0"
         "d895bf237849c5b8cfdf88dd18d17a94f6c3ed61f74996271942301878b3cc1da6cbf899d7c6"
         "fe45a96a7e7a19110547f4393193",
         {0xc6c3cc00, 0xc6808800, 0xc6a8ac00, 0x43a60000}},
        {"5932fed3b0b69d864d38bf8bc6e92f572787614c5b00d6d4866ba02f82adf3859ff2f967fe61"
         "883712d0ca930d903aa5e2de0248625fafe799090141b8fdb9ac989ae94e291409371702d9f5"
         "c0ac3a589b7497ab3e7e3e2a78ef8dec8f85b60ef20ead54cf588275e742870293fc4f5fc462"
         "b195255119dd13332c9ac3a191fe",
         "6b0f17fb5c1aa3d71d03cbb793977802179954f9a5fa23a69fc0a9c8a76a118be7343b85fc48"
         "c2666100270b65c8b625e972257bcfd549b01e217a7e7d899f77e2d0e29df60f7e3314fa5284"
         "48cc120b7e00d87eb963437cef86ad459e710e45d21f7e8353c0823759ec33cb05809b93c276"
         "69622bcbb8cdb6e9fa0360744747",
         {0x457c4400, 0x482b4800, 0x4822c400, 0x4829e400}},
        {"caaa159b69fa5856ed242ceef94690feec2ed604afd05a9a914e19ca690e9196cc2dd7c6886e"
         "a1e30c942fae33512e564dd56f0e1a57d1066f493b553c6ba38b36ae9c27851e6dd92778abb0"
         "f5d547fbbbb183cd1024b44c74a0b1686c720ddfc3c7d8e36d0af69294174e5ee2b9a6a7a480"
         "9f394e322662604ef418b1a090fe",
         "d73ad367c9fb73c9fea7d1dcd2072ca2f22d406d01793966b21280caea952fdfed50758b49b6"
         "2bf6239ef2c2fecca177887db6f2a7caf294a4e058a243da47d44bec79838ee890cb2402c5a9"
         "d743114889bb74379a184276a95336f3229b9236cd375d94c44ed3d4856fe2bc1e43e19cc6c0"
         "216f7c498331e72c2858801203f8",
         {0x482a9800, 0x482eac00, 0x4826ac00, 0x488c7800}}};
    return all;
}

TEST(HopperSums, AreThoseOfAnH200) {
    for (const Measured& m : measured()) {
        const Factors a = Factors::of(m.a), b = Factors::of(m.b);
        for (int steps = 1; steps <= 4; ++steps) {
            const float sum = hopper_sum(a.all(), b.all(), kHopperStep * steps);
            EXPECT_EQ(std::bit_cast<uint32_t>(sum), m.sums[steps - 1]) << m.a << ", " << steps;
        }
    }
}

// 32 factors, then as many as are given, zeros between.
float sum_of(std::vector<float> first, std::vector<float> second, float other) {
    Factors a, b;
    first.resize(kHopperStep);
    second.resize(kHopperStep);
    for (const auto& part : {first, second}) {
        for (const float v : part) {
            a.add(v);
            b.add(other);
        }
    }
    return hopper_sum(a.all(), b.all(), 2 * kHopperStep);
}

TEST(HopperSums, CutThirteenPlacesBelowTheLargest) {
    // 256 and 2^-6, 14 places below: lost; 2^-5 is the last place.
    EXPECT_EQ(sum_of({256.0f, 0x1p-6f}, {}, 1.0f), 256.0f);
    EXPECT_EQ(sum_of({256.0f, 0x1p-5f}, {}, 1.0f), 256.0f + 0x1p-5f);
    EXPECT_EQ(sum_of({256.0f, -0x1p-6f}, {}, 1.0f), 256.0f) << "towards zero";
    // The sum so far is cut as a product is.
    EXPECT_EQ(sum_of({0x1p-6f}, {256.0f}, 1.0f), 256.0f);
    EXPECT_EQ(sum_of({0x1p-6f, 0x1p-6f}, {256.0f}, 1.0f), 256.0f + 0x1p-5f);
    // Its exponent counts, not what it would be as 1.5 * 1.5 * 2^8.
    EXPECT_EQ(sum_of({192.0f, 0x1.8p-6f}, {}, 1.5f), 288.0f + 0x1p-5f);
    EXPECT_EQ(sum_of({}, {}, 1.0f), 0.0f);
}

}  // namespace
}  // namespace mok::oracle
